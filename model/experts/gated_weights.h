#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/weight_matrix.h"

namespace penstock {

// An MLP with a gate.
struct GatedWeights {
  WeightMatrix gate_up;             // rows alternate 16 of gate, 16 of up (padded to 16)
  std::vector<float> gate_up_bias;  // in the order of the rows, or empty
  WeightMatrix down;                // [hidden][intermediate]
  std::vector<float> down_bias;     // [hidden], or empty
  // The expert's number in an ExpertCache, which has its matrices: those here have no panels.
  // -1: all is here.
  int32_t cached_as = -1;

  size_t memory_bytes() const { return gate_up.memory_bytes() + down.memory_bytes(); }
  // The same with the matrices' panels in `memory`, as WeightMatrix::Over.
  GatedWeights Over(std::byte* memory) const {
    return {.gate_up = gate_up.Over(memory),
            .gate_up_bias = gate_up_bias,
            .down = down.Over(memory == nullptr ? nullptr : memory + gate_up.memory_bytes()),
            .down_bias = down_bias,
            .cached_as = cached_as};
  }
};

}  // namespace penstock
