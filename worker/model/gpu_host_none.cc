#include "worker/model/gpu_host.h"

namespace penstock {

absl::StatusOr<std::unique_ptr<GpuHost>> OpenGpuHost(const Weights&, const GpuOptions& options) {
  return FailedPrecondition(
      "device is cuda:{}, and this build has no CUDA: build with cmake --preset cuda (it needs "
      "nvcc 13), or use --device=cpu",
      options.index);
}

}  // namespace penstock
