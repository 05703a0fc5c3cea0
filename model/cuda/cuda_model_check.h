#pragma once

#include <optional>

#include "base/status.h"
#include "kernels/cuda/weight_codes.h"
#include "kernels/kv_format.h"
#include "kernels/quantised_matrix.h"
#include "model/checkpoint/model_config.h"

namespace penstock {

// Returns FAILED_PRECONDITION that names the first part of `config` that the CUDA kernels do not
// implement on `ranks` GPUs. docs/models.md has those that run.
absl::Status CheckCudaModel(const ModelConfig& config, int ranks = 1);

// Returns FAILED_PRECONDITION that names the part of `config` for which GPUs have no pages in a
// format with a span; OK for other formats.
absl::Status CheckCudaSpans(const KvPageFormat& format, const ModelConfig& config);

// The form in which GPUs hold the codes of a format, for products that add up inputs in `order`.
// Absent: they hold such weights in bf16, as floats of 8 and 4 bits in groups of 16 inputs.
std::optional<cuda::CodeForm> CodeFormOf(const QuantisedFormat& format,
                                         cuda::InputOrder order = cuda::InputOrder::kOwn);
// The bytes of an output in that form, or in bf16.
double GpuRowBytes(const QuantisedFormat& format, int64_t inputs);

}  // namespace penstock
