#include "model/cuda/ranks/rank_exchange.h"

#include <thread>
#include <vector>

#include "base/check.h"
#include "kernels/cuda/row_ops.h"
#include "model/cuda/cuda_scratch.h"

namespace penstock {

absl::StatusOr<std::unique_ptr<RankExchange>> RankExchange::Create(const Parts& parts, size_t rows,
                                                                   size_t width) {
  std::unique_ptr<RankExchange> exchange(new RankExchange(parts));
  const size_t bytes = static_cast<size_t>(parts.links.ranks()) * rows * width * sizeof(float);
  ASSIGN_OR_RETURN(exchange->gathered_, cuda::DeviceBuffer::Create(bytes, "parts of products"));
  return exchange;
}

StepReadiness RankExchange::Agree(const StepReadiness& own) {
  StepReadiness all = parts_.barrier.ArriveAndWait(own);
  agreed_ |= all.prepared.ok();
  return all;
}

cuda::Product RankExchange::Sum(const cuda::Product& part, int rows, void* stream) {
  const int64_t size = int64_t{rows} * part.width;
  const size_t bytes = static_cast<size_t>(size) * sizeof(float);
  const int ranks = parts_.links.ranks();
  PENSTOCK_CHECK_LE(bytes * static_cast<size_t>(ranks), gathered_.bytes());
  auto* gathered = gathered_.as<float>();
  const float* own = part.data;
  if (part.slices > 1) {
    float* summed = gathered + parts_.rank * size;
    cuda::SumSlices({.product = part, .output = summed}, rows, stream);
    own = summed;
  }
  PENSTOCK_CHECK_EQ(Message(parts_.links.AllGather(parts_.rank, own, gathered, bytes, stream)), "");
  return {.data = gathered, .slice_stride = size, .slices = ranks, .width = part.width};
}

absl::Status RankExchange::Probe(const cuda::CudaDevice& device, Duration limit) {
  const auto ranks = static_cast<size_t>(parts_.links.ranks());
  std::vector<float> got(ranks);
  auto* gathered = gathered_.as<float>();
  const auto own = static_cast<float>(parts_.rank);
  cuda::CopyToDevice(gathered + parts_.rank, &own, sizeof(own), device.stream());
  RETURN_IF_ERROR(parts_.links.AllGather(parts_.rank, gathered + parts_.rank, gathered, sizeof(own),
                                         device.stream()));
  const CudaEvent done;
  cuda::RecordEvent(done.get(), device.stream());
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!cuda::EventReached(done.get())) {
    RETURN_IF_ERROR(cuda::TakeStatus("an exchange between GPUs"));
    RETURN_IF_ERROR(parts_.links.Look(parts_.rank));
    if (std::chrono::steady_clock::now() > deadline) {
      return DeadlineExceeded(
          "cuda:{} has waited {:.0f} s for the other GPUs of tensor_parallel; NCCL_DEBUG=INFO may "
          "show the cause, NCCL_P2P_DISABLE=1 may avoid it",
          device.index(), Milliseconds(limit) / 1000);
    }
    std::this_thread::yield();
  }
  cuda::CopyToHost(got.data(), gathered, ranks * sizeof(float), device.stream());
  cuda::Synchronize(device.stream());
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (got[rank] != static_cast<float>(rank)) {
      return Internal("cuda:{} received {} from rank {}; expected the rank", device.index(),
                      got[rank], rank);
    }
  }
  return cuda::TakeStatus("an exchange between GPUs");
}

}  // namespace penstock
