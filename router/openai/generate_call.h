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
  std::string request_id;  // echoed, and in every log line of it
  TraceContext trace;      // the caller's
  TimePoint received;
  Duration limit;  // of the whole request
  std::shared_ptr<Exchange> exchange;
};

// Starts a completion's sessions, one a prompt, and answers `exchange` with what they say: as a
// stream of events from its first token on, or whole. An error before the first token is the
// response; one after it is the stream's last event. A client that leaves ends the sessions.
void StartGenerateCall(GenerateCallArgs args);

}  // namespace penstock
