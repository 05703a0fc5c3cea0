#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/checkpoint/safetensors.h"

namespace penstock {

// Tensors with the matrices or biases of all experts of a layer, [experts][...], become tensors of
// one expert. P is a layer's MLP, and e a number from 0 on:
//
//   P.experts.gate_up_proj            P.experts.e.gate_up_proj.weight
//   P.experts.gate_up_proj_bias       P.experts.e.gate_up_proj.bias
//   P.experts.gate_up_proj_blocks     P.experts.e.gate_up_proj.blocks
//   P.experts.gate_up_proj_scales     P.experts.e.gate_up_proj.scales
//   P.experts.gate_proj.weight, bias  P.experts.e.gate_proj.weight, bias

// True for the name of a tensor of all experts, as in the left column.
bool HasAllExperts(std::string_view name);

// The tensors of the experts, in order: parts of the same bytes. INVALID_ARGUMENT names the tensor
// unless its first extent is `experts`.
absl::StatusOr<std::vector<SafetensorsTensor>> SplitByExpert(const SafetensorsTensor& tensor,
                                                             int32_t experts);

}  // namespace penstock
