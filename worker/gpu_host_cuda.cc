#include <utility>

#include "base/bytes.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/cuda_pages.h"
#include "kernels/cuda/cuda_transfers.h"
#include "model/cuda_runner.h"
#include "worker/gpu_host.h"

namespace penstock {
namespace {

// What a step may still ask for: its inputs, split attention, logits; and the ring of CudaPages.
constexpr size_t kReserveBytes = size_t{256} << 20;

class CudaHost final : public GpuHost {
 public:
  CudaHost(std::unique_ptr<cuda::CudaDevice> device, std::unique_ptr<CudaRunner> runner,
           std::unique_ptr<cuda::CudaPages> pages)
      : device_(std::move(device)), runner_(std::move(runner)), pages_(std::move(pages)) {}

  ModelRunner& runner() override { return *runner_; }
  const PagedKv& pages() const override { return pages_->view(); }
  std::shared_ptr<const TransferDevice> transfers() const override {
    return cuda::MakeTransferDevice(*device_);
  }
  std::string arithmetic() const override {
    const cuda::DeviceInfo& info = device_->info();
    return fmt::format("cuda {}.{}", info.compute_major, info.compute_minor);
  }

 private:
  const std::unique_ptr<cuda::CudaDevice> device_;
  const std::unique_ptr<CudaRunner> runner_;
  const std::unique_ptr<cuda::CudaPages> pages_;
};

absl::StatusOr<int64_t> BlocksThatFit(const cuda::CudaDevice& device, const GpuOptions& options,
                                      const KvLayout& layout) {
  const cuda::DeviceInfo info = device.Look();
  const auto share =
      static_cast<size_t>(static_cast<double>(info.memory_bytes) * options.memory_utilization);
  const size_t used = info.memory_bytes - info.free_bytes + kReserveBytes;
  const size_t left = share > used ? share - used : 0;
  const auto blocks = static_cast<int64_t>(left / layout.BlockStride());
  if (blocks >= 1) return blocks;
  return ResourceExhausted(
      "cuda:{} has {}, of which {} are in use with the weights and a reserve of {}: a "
      "gpu_memory_utilization of {:.2f} leaves no room for a block of {}; raise it, or use a "
      "larger GPU",
      options.index, FormatBytes(info.memory_bytes), FormatBytes(used), FormatBytes(kReserveBytes),
      options.memory_utilization, FormatBytes(layout.BlockStride()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<GpuHost>> OpenGpuHost(const Weights& weights,
                                                     const GpuOptions& options) {
  if (!(options.memory_utilization > 0 && options.memory_utilization <= 1)) {
    return InvalidArgument("gpu_memory_utilization is {}, it must be above 0 and at most 1",
                           options.memory_utilization);
  }
  if (options.tensor_parallel != 1) {
    return FailedPrecondition("tensor_parallel is {}; 1 is all there is yet",
                              options.tensor_parallel);
  }
  ASSIGN_OR_RETURN(auto device, cuda::CudaDevice::Open(options.index));
  ASSIGN_OR_RETURN(auto runner, CudaRunner::Create(weights, *device,
                                                   {.max_step_tokens = options.step_tokens,
                                                    .exact = options.exact}));
  KvLayout layout = runner->kv_layout();
  layout.block_tokens = options.block_tokens;
  layout.dtype = options.dtype;
  ASSIGN_OR_RETURN(const int64_t blocks, BlocksThatFit(*device, options, layout));
  ASSIGN_OR_RETURN(auto pages, cuda::CudaPages::Create(*device, layout, blocks));
  return std::make_unique<CudaHost>(std::move(device), std::move(runner), std::move(pages));
}

}  // namespace penstock
