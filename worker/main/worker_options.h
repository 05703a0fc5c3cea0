#pragma once

#include "decode_worker/decode_role.h"
#include "prefill_worker/prefill_role.h"
#include "proto/config.pb.h"
#include "worker/runtime/worker_runtime_options.h"

namespace penstock {

// `config` with the defaults that depend on the device. INVALID_ARGUMENT if chunk_tokens is too
// small.
absl::StatusOr<v1::WorkerConfig> WithDeviceDefaults(v1::WorkerConfig config);

// Translates a worker's configuration into the options of its runtime and its roles.
// INVALID_ARGUMENT for a malformed `listen` or `fault`.
absl::StatusOr<WorkerRuntimeOptions> RuntimeOptionsOf(v1::WorkerState::Role first,
                                                      const v1::WorkerConfig& config);
PrefillRoleOptions PrefillOptionsOf(const v1::WorkerConfig& config);
DecodeRoleOptions DecodeOptionsOf(const v1::WorkerConfig& config);

// CUDA loads all kernels when it starts, unless the operator has set CUDA_MODULE_LOADING: the load
// of a kernel at its first use can wait for kernels that run, and these for other GPUs that wait
// for this one. Changes the environment: call it before any thread starts.
void LoadKernelsAtStart(const v1::WorkerConfig& config);

// NCCL that connects only the GPUs of this worker listens on the loopback interface alone, unless
// the operator has set NCCL_SOCKET_IFNAME. Changes the environment: call it before any thread
// starts.
void KeepNcclOnThisHost(const v1::WorkerConfig& config);

}  // namespace penstock
