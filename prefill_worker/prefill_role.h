#pragma once

#include <cstdint>
#include <memory>

#include "worker/runtime/worker_body.h"
#include "worker/runtime/worker_role.h"

namespace penstock {

struct PrefillRoleOptions {
  int32_t chunk_tokens = 512;    // computed in a step
  int32_t layers_per_group = 0;  // pushed together; 0: chosen
  uint32_t prompts_max = 256;    // waiting and running
  bool random_chunks = false;    // for tests
};

// Turns prompts into KV and first tokens. `body` outlives it. Its engine runs at once.
std::unique_ptr<WorkerRole> MakePrefillRole(WorkerBody& body, const PrefillRoleOptions& options);

}  // namespace penstock
