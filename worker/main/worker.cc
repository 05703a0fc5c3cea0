#include "worker/main/worker.h"

#include <utility>
#include <vector>

#include "worker/main/worker_options.h"

namespace penstock {

absl::StatusOr<std::unique_ptr<WorkerRuntime>> StartWorker(v1::WorkerState::Role first,
                                                           const v1::WorkerConfig& given) {
  ASSIGN_OR_RETURN(const v1::WorkerConfig config, WithDeviceDefaults(given));
  ASSIGN_OR_RETURN(WorkerRuntimeOptions options, RuntimeOptionsOf(first, config));
  ASSIGN_OR_RETURN(std::unique_ptr<WorkerRuntime> runtime, WorkerRuntime::Open(std::move(options)));
  std::vector<std::unique_ptr<WorkerRole>> roles;
  roles.push_back(MakePrefillRole(*runtime, PrefillOptionsOf(config)));
  roles.push_back(MakeDecodeRole(*runtime, DecodeOptionsOf(config)));
  RETURN_IF_ERROR(runtime->Serve(std::move(roles)));
  return runtime;
}

}  // namespace penstock
