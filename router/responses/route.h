#pragma once

#include "router/openai/answer_route.h"

namespace penstock {

// Room router/responses: OpenAI's Responses API over the same requests as its chat completions,
// without stored state: parses its JSON to GenerateRequests and writes answers and events. It knows
// the parts of router/openai that the two APIs share; it may not know HTTP exchanges, workers or
// placement.

// POST /v1/responses.
AnswerRoute ResponsesRoute();

}  // namespace penstock
