#pragma once

#include <functional>

#include "base/status.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/library/prefill.h"

namespace penstock::cuda::library {

// Returns FAILED_PRECONDITION that names numerics if this build has no library kernels, or if they
// do not run on the GPU that `info` describes.
absl::Status CheckPrefillDevice(const DeviceInfo& info);

// The parts of a model that choose the kernel's variant.
struct PrefillModel {
  int32_t head_dim = 128;
  int32_t group = 1;  // query heads per KV head
  int32_t page_tokens = 16;
  bool full = true;     // some layers see all tokens
  bool window = false;  // some layers have a sliding window
};

// Computes prefill attention.
using PrefillRun = std::function<void(const PrefillCall&, void* stream)>;

// Compares prefill attention of a prompt of several tiles with the host's in double precision, and
// its bits in two divisions into chunks with each other, on the selected GPU. Returns
// FAILED_PRECONDITION that says what differs, or RESOURCE_EXHAUSTED.
absl::Status CheckPrefill(const PrefillRun& run, const PrefillModel& model, int32_t processors,
                          void* stream);

}  // namespace penstock::cuda::library
