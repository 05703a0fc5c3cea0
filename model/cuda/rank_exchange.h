#pragma once

#include <memory>
#include <utility>

#include "base/clock.h"
#include "kernels/cuda/cuda_device.h"
#include "model/cuda/rank_barrier.h"
#include "model/cuda/rank_links.h"
#include "model/forward/product_exchange.h"

namespace penstock {

// One rank's end of the exchange: parts of products are gathered from all ranks, and whoever reads
// the result adds them in the order of ranks. So a sum depends on the number of ranks, and neither
// on how many rows are computed at once nor on what NCCL does with so many bytes.
class RankExchange final : public ProductExchange {
 public:
  struct Parts {
    int rank = 0;
    RankLinks& links;
    RankBarrier& meeting;
  };

  // For products of up to `rows` of `width`. The thread has selected the rank's GPU.
  // RESOURCE_EXHAUSTED where there is no room.
  static absl::StatusOr<std::unique_ptr<RankExchange>> Create(const Parts& parts, size_t rows,
                                                              size_t width);
  // Whether all ranks reach each other; every rank calls it. Returns within `limit`, or so.
  absl::Status Probe(const cuda::CudaDevice& device, Duration limit);

  absl::Status Agree(const absl::Status& prepared) override;
  // Whether all have agreed since the last call.
  bool TakeAgreed() { return std::exchange(agreed_, false); }
  // Fatal where NCCL fails: what the ranks have enqueued cannot be taken back.
  cuda::Product Sum(const cuda::Product& part, int rows, void* stream) override;

 private:
  explicit RankExchange(const Parts& parts) : parts_(parts) {}

  const Parts parts_;
  cuda::DeviceBuffer gathered_;  // f32 [ranks][rows][width]
  bool agreed_ = false;
};

}  // namespace penstock
