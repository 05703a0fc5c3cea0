#pragma once

#include "decode_worker/decode_role.h"
#include "prefill_worker/prefill_role.h"
#include "proto/config.pb.h"
#include "worker/runtime/worker_body.h"

namespace penstock {

// What a worker's configuration says to each of its parts.

// INVALID_ARGUMENT for a malformed `listen` or `fault`.
absl::StatusOr<WorkerBody::Options> BodyOptionsOf(v1::WorkerState::Role first,
                                                  const v1::WorkerConfig& config);
PrefillRoleOptions PrefillOptionsOf(const v1::WorkerConfig& config);
DecodeRoleOptions DecodeOptionsOf(const v1::WorkerConfig& config);

}  // namespace penstock
