#pragma once

#include "decode_worker/decode_role.h"
#include "prefill_worker/prefill_role.h"
#include "proto/config.pb.h"
#include "worker/runtime/worker_runtime_options.h"

namespace penstock {

// Translates a worker's configuration into the options of its runtime and its roles.
// INVALID_ARGUMENT for a malformed `listen` or `fault`.
absl::StatusOr<WorkerRuntimeOptions> RuntimeOptionsOf(v1::WorkerState::Role first,
                                                      const v1::WorkerConfig& config);
PrefillRoleOptions PrefillOptionsOf(const v1::WorkerConfig& config);
DecodeRoleOptions DecodeOptionsOf(const v1::WorkerConfig& config);

// NCCL that connects only the GPUs of this worker listens on the loopback interface alone, unless
// the operator has set NCCL_SOCKET_IFNAME. Changes the environment: call it before any thread
// starts.
void KeepNcclOnThisHost(const v1::WorkerConfig& config);

}  // namespace penstock
