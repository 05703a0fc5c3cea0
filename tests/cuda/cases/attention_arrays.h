#pragma once

#include <cstddef>
#include <vector>

#include "kernels/cuda/attention.h"
#include "tests/cuda/cases/device_array.h"

namespace penstock::cuda {

// Owns the arrays of an attention's plan in device memory, and its scratch memory.
struct AttentionArrays {
  AttentionArrays(const std::vector<AttentionSequence>& of, const AttentionPlan& plan,
                  size_t wide_bytes, size_t narrow_bytes)
      : sequences(of),
        wide(plan.wide),
        narrow(plan.narrow),
        items(plan.items),
        wide_scratch(wide_bytes / sizeof(float)),
        narrow_scratch(narrow_bytes / sizeof(float)) {}

  // Sets what `params` has of the plan. The arrays outlive its use.
  void SetIn(AttentionParams& params) const {
    params.sequences = sequences.data();
    params.wide = wide.data();
    params.narrow = narrow.data();
    params.items = items.data();
    params.wide_scratch = wide_scratch.data();
    params.narrow_scratch = narrow_scratch.data();
  }

  const DeviceArray<AttentionSequence> sequences;
  const DeviceArray<AttentionTile> wide, narrow;
  const DeviceArray<SplitItem> items;
  const DeviceArray<float> wide_scratch, narrow_scratch;
};

}  // namespace penstock::cuda
