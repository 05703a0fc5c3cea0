#include "worker/main/worker.h"

#include <vector>

#include "worker/main/worker_options.h"

namespace penstock {

absl::StatusOr<std::unique_ptr<Worker>> Worker::Start(v1::WorkerState::Role first,
                                                      const v1::WorkerConfig& config) {
  ASSIGN_OR_RETURN(WorkerBody::Options options, BodyOptionsOf(first, config));
  ASSIGN_OR_RETURN(std::unique_ptr<WorkerBody> body, WorkerBody::Open(std::move(options)));
  std::vector<std::unique_ptr<WorkerRole>> roles;
  roles.push_back(MakePrefillRole(*body, PrefillOptionsOf(config)));
  roles.push_back(MakeDecodeRole(*body, DecodeOptionsOf(config)));
  RETURN_IF_ERROR(body->Serve(std::move(roles), first));
  return std::unique_ptr<Worker>(new Worker(std::move(body)));
}

}  // namespace penstock
