#pragma once

#include <cstdint>
#include <memory>

#include "worker/runtime/worker_role.h"
#include "worker/runtime/worker_runtime.h"

namespace penstock {

struct PrefillRoleOptions {
  int32_t chunk_tokens = 512;    // computed in a step
  int32_t layers_per_group = 0;  // pushed together; 0: chosen
  uint32_t max_waiting = 256;    // prompts that wait or run
  bool random_chunks = false;    // for tests
};

// The role that turns prompts into KV and first tokens. `runtime` outlives it. The engine starts at
// once.
std::unique_ptr<WorkerRole> MakePrefillRole(WorkerRuntime& runtime,
                                            const PrefillRoleOptions& options);

}  // namespace penstock
