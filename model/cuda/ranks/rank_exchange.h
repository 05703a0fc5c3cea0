#pragma once

#include <memory>
#include <utility>

#include "base/clock.h"
#include "kernels/cuda/cuda_device.h"
#include "model/cuda/product_exchange.h"
#include "model/cuda/ranks/rank_barrier.h"
#include "model/cuda/ranks/rank_links.h"

namespace penstock {

// One rank's end of the exchange. Parts of products are gathered from all ranks, and the reader of
// the result adds them in the order of ranks. A sum therefore depends on the number of ranks, but
// not on the number of rows nor on the algorithm that NCCL chooses for a size. One thread, the
// rank's own.
class RankExchange final : public ProductExchange {
 public:
  struct Parts {
    int rank = 0;
    RankLinks& links;
    RankBarrier& barrier;
  };

  // For products of up to `rows` rows of `width`. The calling thread has selected the rank's GPU.
  // Returns RESOURCE_EXHAUSTED if memory is short.
  static absl::StatusOr<std::unique_ptr<RankExchange>> Create(const Parts& parts, size_t rows,
                                                              size_t width);
  // Tests that all ranks reach each other; every rank calls it. Returns after at most about
  // `limit`.
  absl::Status Probe(const cuda::CudaDevice& device, Duration limit);

  StepReadiness Agree(const StepReadiness& own) override;
  // True if all ranks were prepared for a step since the last call.
  bool TakeAgreed() { return std::exchange(agreed_, false); }
  // Ends the process if NCCL fails: work that the ranks have enqueued cannot be cancelled safely.
  cuda::Product Sum(const cuda::Product& part, int rows, void* stream) override;

 private:
  explicit RankExchange(const Parts& parts) : parts_(parts) {}

  const Parts parts_;
  cuda::DeviceBuffer gathered_;  // f32 [ranks][rows][width]
  bool agreed_ = false;
};

}  // namespace penstock
