#pragma once

#include <memory>
#include <string>

#include "http/exchange.h"
#include "router/inference/inference_core.h"
#include "router/openai/request.h"

namespace penstock {

struct GenerateCallArgs {
  InferenceCore& core;
  OpenAiRequest request;
  EntryTicket ticket;
  std::string request_id;  // echoed to the client and in the request's log lines
  TraceContext trace;      // the caller's
  TimePoint received;
  Duration limit;  // for the whole request
  std::shared_ptr<Exchange> exchange;
};

// Starts one session for each prompt and writes their answer to `exchange`: as server-sent events
// from the first token on, or as one object. An error before the first token is the HTTP response;
// a later one is the stream's last event. The sessions are cancelled when the client leaves.
void StartGenerateCall(GenerateCallArgs args);

}  // namespace penstock
