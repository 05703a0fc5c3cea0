#pragma once

#include <memory>
#include <string_view>

#include "http/exchange.h"
#include "router/grpc/call_head.h"
#include "router/inference/inference_core.h"

namespace penstock {

// The form of a generating method: how its request is parsed and its answer written.
struct GenerateForm {
  Endpoint endpoint;
  absl::Status (*parse)(std::string_view message, v1::GenerateRequest& request);
  // Writes the whole answer; nullptr: the answer is streamed.
  void (*respond)(v1::GenerateUnaryResponse answer, Exchange& exchange);
};
const GenerateForm& GenerateStreamForm();
const GenerateForm& GenerateUnaryForm();
// WarmPrefix generates the one token that every prefill samples, and pins the prompt.
const GenerateForm& WarmPrefixForm();

struct GrpcGenerateArgs {
  InferenceCore& core;
  const GenerateForm& form;
  Caller caller;
  const HttpRequest& request;  // only during StartGrpcGenerate
  std::shared_ptr<Exchange> exchange;
};

// Starts a session and writes its answer to `exchange`. The stream starts with the first token; an
// error before it is answered as Trailers-Only. The session is cancelled when the client leaves or
// its deadline passes.
void StartGrpcGenerate(const GrpcGenerateArgs& args);

}  // namespace penstock
