#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "model/cuda/cuda_batch.h"
#include "model/forward/angle_table.h"

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
  size_t sequences = 0, positions = 0, wide = 0, narrow = 0, items = 0, tables = 0, row_tables = 0;
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

// The angles of a rotation in StepInputs: cosines and sines, [rows][dims / 2].
struct StepAngles {
  size_t cosines = 0, sines = 0;
  int32_t dims = 0;  // 0: no rotation
};

StepAngles AddAngles(AngleTable& table, const std::vector<int32_t>& positions, StepInputs& inputs);

// The offsets of the arrays of the rows that a layer computes.
struct StepRows {
  size_t tokens = 0, positions = 0, slots = 0, row_slots = 0;
  std::array<StepAngles, 3> angles;  // by LayerRope
};

}  // namespace penstock
