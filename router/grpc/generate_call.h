#pragma once

#include <memory>
#include <string_view>

#include "http/exchange.h"
#include "router/grpc/call_head.h"
#include "router/inference/inference_core.h"

namespace penstock {

// How a method's messages stand for a request and its answer.
struct GenerateForm {
  Endpoint endpoint;
  absl::Status (*parse)(std::string_view message, v1::GenerateRequest& request);
  // Answers with the whole; null: the answer is streamed.
  void (*respond)(v1::GenerateUnaryResponse answer, Exchange& exchange);
};
const GenerateForm& GenerateStreamForm();
const GenerateForm& GenerateUnaryForm();
// Warming is generating the one token that every prefill gives, and keeping the prompt.
const GenerateForm& WarmPrefixForm();

struct GrpcGenerateArgs {
  InferenceCore& core;
  const GenerateForm& form;
  Caller caller;
  const HttpRequest& request;  // for the call
  std::shared_ptr<Exchange> exchange;
};

// Starts a session and answers `exchange` with what it says, from its first token on: an error
// before that is the whole answer. A client that leaves, or its deadline, ends the session.
void StartGrpcGenerate(const GrpcGenerateArgs& args);

}  // namespace penstock
