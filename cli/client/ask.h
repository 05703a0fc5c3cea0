#pragma once

#include "base/status.h"
#include "cli/client/answer.h"
#include "cli/client/commands.h"
#include "proto/inference.pb.h"

namespace penstock {

class InferenceClient;
class Interrupts;

struct AskOutput {
  bool json = false;   // JSON lines instead of text
  bool stats = false;  // afterwards: on standard error, or in the last JSON line
};

struct Asked {
  absl::Status status;
  int signal = 0;  // that stopped it
  Answer answer;
  // 0, the exit code for `status`, or 128 + signal.
  int exit_code() const;
};

// Copies what was set.
void SetKv(const KvPolicyOptions& options, v1::GenerateRequest& request);
void SetSampling(const SamplingOptions& options, v1::GenerateRequest& request);

// Sends the request and writes the answer to standard output as it comes. With several choices in
// text, the first streams and the others follow it whole. Errors are reported, on standard error.
Asked Ask(InferenceClient& client, Interrupts& interrupts, v1::GenerateRequest request,
          const AskOutput& output);

}  // namespace penstock
