#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/sample.h"

namespace penstock::cuda {

// The tokens that `rows` draw from `logits` [..][vocabulary]; SampledRow() for padding.
std::vector<SampledRow> RunSample(const std::vector<float>& logits, int32_t vocabulary,
                                  const std::vector<SampleRow>& rows);

}  // namespace penstock::cuda
