#include "kernels/cuda/device/sample.cuh"
#include "kernels/cuda/sample.h"

namespace penstock::cuda {

size_t SampleScratchBytes(int draws) { return sizeof(SampleScratch) * draws; }

void Sample(const SampleParams& params, int draws, void* stream) {
  const LaunchShape pieces{.x = draws,
                           .y = kSamplePieces,
                           .threads = kPieceThreads,
                           .shared_bytes = sizeof(PieceShared)};
  Launch(&FindTopsKernel, pieces, params, stream);
  Launch(&AddMassesKernel, pieces, params, stream);
  const LaunchShape rows{
      .x = draws, .threads = kSampleThreads, .shared_bytes = sizeof(SampleShared)};
  Launch(&PickKernel, rows, params, stream);
}

}  // namespace penstock::cuda
