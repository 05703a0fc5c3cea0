#pragma once

#include <cstdint>
#include <memory>

#include "worker/runtime/worker_body.h"
#include "worker/runtime/worker_role.h"

namespace penstock {

struct DecodeRoleOptions {
  uint32_t batch_max = 64;                  // sequences a step
  uint32_t prefill_chunk = 64;              // prompt tokens computed in a step beside them
  uint32_t local_prefill_max_tokens = 128;  // of a prompt, to be computed here; 0: none
  uint32_t waiting_max = 256;               // sessions, for blocks
};

// Receives KV and turns it into tokens. `body` outlives it. Its engine runs at once.
std::unique_ptr<WorkerRole> MakeDecodeRole(WorkerBody& body, const DecodeRoleOptions& options);

}  // namespace penstock
