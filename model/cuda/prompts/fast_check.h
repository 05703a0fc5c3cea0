#pragma once

#include "base/status.h"
#include "kernels/library/prefill_check.h"
#include "kernels/paged_kv.h"
#include "model/checkpoint/model_config.h"

namespace penstock {

// Each returns FAILED_PRECONDITION that names numerics and the reason if the library's kernel
// cannot compute a prompt's attention: for the model or on the GPU, and in pages of `dtype`.
absl::Status CheckFastPrompts(const ModelConfig& config, const cuda::DeviceInfo& info);
absl::Status CheckFastPages(KvDtype dtype);

// What CheckPrefill is to check for a model in pages of `page_tokens`.
cuda::library::PrefillModel PrefillModelOf(const ModelConfig& config, int32_t page_tokens);

}  // namespace penstock
