#pragma once

#include <cstdint>
#include <vector>

#include "kernels/library/prefill.h"

namespace penstock {

// The sequences of a step whose attention the library's kernel computes (numerics=fast), in the
// form that the kernel takes. Plain data on the host, of one step.
struct PromptRows {
  // Plans the step's work for the heads, head_dim and processors of `shape`. One plan serves all
  // layers: a window only makes some of its tiles shorter.
  void Plan(const cuda::library::PrefillShape& shape, int64_t table_stride);

  std::vector<cuda::library::PrefillRows> sequences;  // rows are counted among all of the step
  cuda::library::PrefillPlan plan;
  std::vector<uint32_t> tables;      // table_stride entries for each sequence
  std::vector<uint32_t> row_tables;  // as CudaAttention::row_tables
};

}  // namespace penstock
