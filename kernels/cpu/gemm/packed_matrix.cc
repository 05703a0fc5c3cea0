#include "kernels/packed_matrix.h"

#include <utility>

#include "base/check.h"

namespace penstock {

PackedMatrix::PackedMatrix(int64_t outputs, int64_t inputs)
    : PackedMatrix(WithoutPanels(outputs, inputs)) {
  memory_ = Buffer(memory_bytes());
}

PackedMatrix PackedMatrix::WithoutPanels(int64_t outputs, int64_t inputs) {
  PENSTOCK_CHECK_EQ(inputs % 2, 0);
  PackedMatrix matrix;
  matrix.outputs_ = outputs;
  matrix.inputs_ = inputs;
  return matrix;
}

PackedMatrix PackedMatrix::Over(Buffer memory) const {
  PENSTOCK_CHECK(memory.bytes() == 0 || memory.bytes() == memory_bytes());
  PackedMatrix matrix = WithoutPanels(outputs_, inputs_);
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
