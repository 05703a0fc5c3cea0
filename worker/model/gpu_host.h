#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/status.h"
#include "kernels/device_slabs.h"
#include "kernels/transfer_device.h"
#include "kvstore/cache/block_pool.h"
#include "kvstore/codec/slab_coder.h"
#include "model/forward/model_runner.h"
#include "model/weights/weights.h"

namespace penstock {

struct GpuOptions {
  int index = 0;                    // of cuda:N
  int tensor_parallel = 1;          // GPUs that compute together, from that one on
  std::string nccl_library;         // that connects them, where there are several
  double memory_utilization = 0.9;  // of the GPU's memory, for weights, scratch and pages together
  int32_t step_tokens = 512;        // maximum of one step
  int64_t blocks_max = 0;           // maximum of pages, even if more fit; 0: no limit
  uint64_t page_bytes_max = 0;      // the same in bytes of all pages
  std::string kernels = "auto";     // the implementation of the matrix products: own, library, auto
  // Decode steps as graphs: "never", "always", or "auto", on one GPU.
  std::string graphs = "auto";
  // "exact", or "fast": attention of prompts by the library (CudaRunner::Options::fast_prompts).
  std::string numerics = "exact";
  int32_t block_tokens = 16;
  KvPageFormat format = {};
  bool evicts = false;   // as CudaRunner::Options::evicts
  bool selects = false;  // as CudaRunner::Options::selects
  bool blends = false;   // as CudaRunner::Options::blends
  // Give the layers of a window group less memory than the others (SplitKvMemory).
  bool splits_pages = false;
  int threads = 1;  // of this machine, for the load of the weights and the check
};

// What the start of a model did.
struct ModelStart {
  double check_s = 0;       // the start of CUDA and the check of a GPU with a small model
  double load_s = 0;        // of the weights
  size_t weight_bytes = 0;  // in the memory of the CPU or of all GPUs
};

// Slabs that cross page-locked host memory on their way between the GPUs of one worker, because
// these have no peer access.
struct SlabDetours {
  std::string reason;  // empty: no slab does
  uint64_t slabs = 0;  // so far
};

// A model on a GPU, and its pages there; the GPU part of a ModelHost. A seam: gpu_host_cuda.cc
// implements it, and gpu_host_none.cc replaces it in builds without CUDA.
class GpuHost {
 public:
  virtual ~GpuHost() = default;
  virtual ModelRunner& runner() = 0;
  virtual const PagedKv& pages() const = 0;
  // The pool of the pages; called once, before they are used. It must not outlive this object, nor
  // may anything use the pages behind its end. Errors as for BlockPool::CreateOver.
  virtual absl::StatusOr<std::unique_ptr<BlockPool>> MakePool() = 0;
  // For wires that move this GPU's memory.
  virtual std::shared_ptr<const TransferDevice> transfers() const = 0;
  // The slabs in this GPU's memory, opened by the first call; of several GPUs, in that of the
  // first. RESOURCE_EXHAUSTED if they do not fit; FAILED_PRECONDITION if the GPUs cannot copy the
  // pages.
  virtual absl::StatusOr<DeviceSlabs*> OpenSlabs() = 0;
  virtual SlabDetours slab_detours() const = 0;
  // A coder for slabs of up to `raw_bytes_max` bytes. `calibration` outlives it; null: none of the
  // codecs that need one.
  virtual absl::StatusOr<std::unique_ptr<SlabCoder>> MakeSlabCoder(
      size_t raw_bytes_max, const KvCalibration* calibration) = 0;
  // Names everything that decides rounding on the GPU.
  virtual std::string arithmetic() const = 0;

  ModelStart start;  // set by OpenGpuHost
};

// Copies `weights` to the GPU, from the checkpoint's files where they are there.
// FAILED_PRECONDITION says what is unsupported and the next step: no CUDA in this build, no driver,
// no such GPU, an architecture or a model without kernels, numerics=fast where the library's
// attention is not there, or results that differ from the CPU's: of the library's attention, or of
// small models (model/forward/runner_check.h, and model/check for blends and the layer for
// multi-token prediction, where they are asked for). RESOURCE_EXHAUSTED names what does not fit.
absl::StatusOr<std::unique_ptr<GpuHost>> OpenGpuHost(const Weights& weights,
                                                     const GpuOptions& options);

}  // namespace penstock
