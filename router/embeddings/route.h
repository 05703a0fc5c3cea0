#pragma once

#include "router/openai/answer_route.h"

namespace penstock {

// Room router/embeddings: OpenAI's Embeddings API. An embedding is the answer to a request without
// tokens. It knows the parts of router/openai that the two APIs share; it may not know HTTP
// exchanges, workers or placement.

// POST /v1/embeddings.
AnswerRoute EmbeddingsRoute();

}  // namespace penstock
