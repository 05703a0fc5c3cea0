#include "worker_main/worker.h"

#include <algorithm>
#include <vector>

#include "decode_worker/decode_role.h"
#include "prefill_worker/prefill_role.h"

namespace penstock {

template <class Config>
absl::StatusOr<std::unique_ptr<Worker>> Worker::StartAs(v1::WorkerState::Role first,
                                                        const Config& config) {
  // What one step computes at most decides how much memory the model's runner takes, once.
  const uint32_t step_tokens =
      std::max(config.chunk_tokens(), config.max_batch() + config.prefill_chunk());
  ASSIGN_OR_RETURN(WorkerBody::Options options, BodyOptionsOf(first, config, step_tokens));
  ASSIGN_OR_RETURN(std::unique_ptr<WorkerBody> body, WorkerBody::Open(std::move(options)));
  std::vector<std::unique_ptr<WorkerRole>> roles;
  roles.push_back(MakePrefillRole(*body, PrefillRoleOptionsOf(config)));
  roles.push_back(MakeDecodeRole(*body, DecodeRoleOptionsOf(config)));
  RETURN_IF_ERROR(body->Serve(std::move(roles), first));
  return std::unique_ptr<Worker>(new Worker(std::move(body)));
}

absl::StatusOr<std::unique_ptr<Worker>> Worker::Start(const v1::PrefillConfig& config) {
  return StartAs(v1::WorkerState::PREFILL, config);
}

absl::StatusOr<std::unique_ptr<Worker>> Worker::Start(const v1::DecodeConfig& config) {
  return StartAs(v1::WorkerState::DECODE, config);
}

}  // namespace penstock
