#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "http/exchange.h"
#include "router/api/answer_format.h"
#include "router/api/error_parts.h"
#include "router/inference/inference_core.h"

namespace penstock {

// Room router/api: what the HTTP APIs share. It runs a call from its admission to the last byte of
// its answer, which an AnswerFormat writes. It knows HTTP exchanges and the inference core; it may
// not know the JSON of any API, workers or placement.

struct AnswerCallArgs {
  InferenceCore& core;
  std::vector<v1::GenerateRequest> prompts;
  // The API's names of the prompts' fields, for errors before they are admitted; dropped then.
  std::vector<FieldName> prompt_names = {};
  bool stream = false;
  EntryTicket ticket;
  std::string request_id;         // echoed to the client and in the request's log lines
  std::string request_id_header;  // the header that echoes it
  TraceContext trace;             // the caller's
  TimePoint received;
  Duration limit;  // for the whole request
  std::shared_ptr<Exchange> exchange;
  // Called once: makes the writer of the answer, when all prompts are admitted.
  std::function<std::unique_ptr<AnswerFormat>(uint32_t choices, uint32_t prompt_tokens)> format;
  // The response to a request that failed before its first token.
  std::function<HttpResponse(const absl::Status&)> error;
};

// Starts one session for each prompt and writes their answer to `exchange`: as server-sent events
// from the first token on, or as one object. An error before the first token is the HTTP response;
// a later one is the stream's last event. The sessions are cancelled when the client leaves.
void StartAnswerCall(AnswerCallArgs args);

}  // namespace penstock
