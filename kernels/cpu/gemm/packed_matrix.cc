#include "kernels/packed_matrix.h"

#include <utility>

#include "base/check.h"

namespace penstock {

PackedMatrix::PackedMatrix(int64_t outputs, int64_t inputs)
    : outputs_(outputs),
      inputs_(inputs),
      memory_(static_cast<size_t>(panels() * stride()) * sizeof(Bf16)) {
  PENSTOCK_CHECK_EQ(inputs % 2, 0);
}

PackedMatrix PackedMatrix::Over(Buffer memory) const {
  PENSTOCK_CHECK(memory.bytes() == 0 || memory.bytes() == memory_bytes());
  PackedMatrix matrix;
  matrix.outputs_ = outputs_;
  matrix.inputs_ = inputs_;
  matrix.memory_ = std::move(memory);
  return matrix;
}

void PackedMatrix::SetRow(int64_t output, const Bf16* values) {
  PENSTOCK_CHECK_LT(output, outputs_);
  Bf16* target = memory_.as<Bf16>() + output / kPanel * stride() + output % kPanel * 2;
  for (int64_t i = 0; i < inputs_; i += 2) {
    target[i * kPanel] = values[i];
    target[i * kPanel + 1] = values[i + 1];
  }
}

void PackedMatrix::GetRow(int64_t output, float* values) const {
  PENSTOCK_CHECK_LT(output, outputs_);
  const Bf16* source = panel(output / kPanel) + output % kPanel * 2;
  for (int64_t i = 0; i < inputs_; i += 2) {
    values[i] = ToFloat(source[i * kPanel]);
    values[i + 1] = ToFloat(source[i * kPanel + 1]);
  }
}

}  // namespace penstock
