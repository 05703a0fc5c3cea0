#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "model/cuda/cuda_batch.h"

namespace penstock {

// Collects the host arrays of a step, which are sent to the device in one copy.
class StepInputs {
 public:
  template <class T>
  size_t Add(const std::vector<T>& values) {
    const size_t offset = (bytes_.size() + 15) / 16 * 16;
    bytes_.resize(offset + values.size() * sizeof(T));
    std::copy_n(reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(T),
                bytes_.data() + offset);
    return offset;
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

// The offsets of a CudaAttention's arrays in StepInputs.
struct AttentionInputs {
  size_t sequences = 0, wide = 0, narrow = 0, items = 0, tables = 0, row_tables = 0;
  // Of CudaAttention::prompts.
  size_t prompt_plan = 0, prompt_tables = 0, prompt_row_tables = 0;
};

AttentionInputs AddAttention(const CudaAttention& attention, StepInputs& inputs);

// The same of a CudaSelected.
struct SelectedInputs {
  AttentionInputs dense, chosen;
  size_t rows = 0;
};

SelectedInputs AddSelected(const CudaSelected& selected, StepInputs& inputs);

}  // namespace penstock
