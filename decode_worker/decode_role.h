#pragma once

#include <cstdint>
#include <memory>

#include "worker/runtime/worker_role.h"
#include "worker/runtime/worker_runtime.h"

namespace penstock {

struct DecodeRoleOptions {
  uint32_t batch_max = 64;                  // sequences a step
  uint32_t prefill_chunk = 64;              // prompt tokens computed in a step beside them
  uint32_t local_prefill_max_tokens = 128;  // of a prompt, to be computed here; 0: none
  uint32_t max_waiting = 256;               // sessions that wait for blocks
  uint32_t draft_tokens = 0;   // guesses of a sequence that a step checks; 0: no speculation
  uint32_t draft_rows = 0;     // guesses of all sequences that a step checks
  bool ngrams = true;          // guess from the sequence's own tokens
  bool random_drafts = false;  // for tests
};

// The maximum number of tokens in a step of the draft model, for which its runner needs memory.
int32_t DraftStepTokens(uint32_t batch_max);

// The role that receives KV and turns it into tokens. `runtime` outlives it. The engine starts at
// once.
std::unique_ptr<WorkerRole> MakeDecodeRole(WorkerRuntime& runtime,
                                           const DecodeRoleOptions& options);

}  // namespace penstock
