#include "kernels/cuda/device/sample.cuh"
#include "kernels/cuda/sample.h"

namespace penstock::cuda {

void Sample(const SampleParams& params, int draws, void* stream) {
  const LaunchShape shape{
      .x = draws, .threads = kSampleThreads, .shared_bytes = sizeof(SampleShared)};
  Launch(&SampleKernel, shape, params, stream);
}

}  // namespace penstock::cuda
