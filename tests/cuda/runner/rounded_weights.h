#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "model/weights/weights.h"

namespace penstock {

// The matrix with its weights rounded to bf16.
inline WeightMatrix InBf16(const WeightMatrix& matrix) {
  PackedMatrix packed(matrix.outputs(), matrix.inputs());
  std::vector<float> values(static_cast<size_t>(matrix.inputs()));
  std::vector<Bf16> row(values.size());
  for (int64_t output = 0; output < matrix.outputs(); ++output) {
    matrix.GetRow(output, values.data());
    std::ranges::transform(values, row.begin(), ToBf16);
    packed.SetRow(output, row.data());
  }
  return WeightMatrix(std::move(packed));
}

// Rounds the matrices of an MLP: an expert's, or a layer's dense one.
template <class Mlp>
void RoundToBf16(Mlp& mlp) {
  mlp.gate_up = InBf16(mlp.gate_up);
  mlp.down = InBf16(mlp.down);
}
inline void RoundToBf16(ExpertLayer& layer) {
  for (GatedWeights& expert : layer.experts) RoundToBf16(expert);
  if (layer.shared.has_value()) RoundToBf16(*layer.shared);
}

}  // namespace penstock
