#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "kernels/device_slabs.h"
#include "kernels/transfer_device.h"
#include "kvstore/codec/slab_coder.h"
#include "model/forward/model_runner.h"
#include "model/forward/weights.h"

namespace penstock {

struct GpuOptions {
  int index = 0;                    // of cuda:N
  int tensor_parallel = 1;          // GPUs that compute together, from that one on
  std::string nccl_library;         // that connects them, where there are several
  double memory_utilization = 0.9;  // of the GPU's memory, for weights, scratch and pages together
  int32_t step_tokens = 512;        // the most that one step computes
  int64_t blocks_max = 0;           // of the pages, where more fit; 0: no limit
  // Logits are those of any chunking (CudaRunner::Options); slower where tokens come one by one.
  bool exact = true;
  int32_t block_tokens = 16;
  KvDtype dtype = KvDtype::kBf16;
};

// A model on a GPU and its pages there: what a ModelHost has of it. A seam: gpu_host_cuda.cc is it,
// gpu_host_none.cc is in builds without CUDA.
class GpuHost {
 public:
  virtual ~GpuHost() = default;
  virtual ModelRunner& runner() = 0;
  virtual const PagedKv& pages() const = 0;
  // For wires that go by way of it.
  virtual std::shared_ptr<const TransferDevice> transfers() const = 0;
  // Slabs beside the pages, made with the first call. RESOURCE_EXHAUSTED; FAILED_PRECONDITION where
  // the pages are spread over several GPUs.
  virtual absl::StatusOr<DeviceSlabs*> OpenSlabs() = 0;
  // Of those slabs, up to so many bytes each.
  virtual absl::StatusOr<std::unique_ptr<SlabCoder>> MakeSlabCoder(size_t raw_bytes_max) = 0;
  // Names what decides how the GPU rounds.
  virtual std::string arithmetic() const = 0;
};

// `weights` are copied to the GPU. FAILED_PRECONDITION says what does not fit and what to do: no
// CUDA in this build, no driver, no such GPU, an architecture or a model that the kernels do not
// take, or results of a small model that are not the CPU's (model/forward/runner_check.h).
// RESOURCE_EXHAUSTED names what finds no room.
absl::StatusOr<std::unique_ptr<GpuHost>> OpenGpuHost(const Weights& weights,
                                                     const GpuOptions& options);

}  // namespace penstock
