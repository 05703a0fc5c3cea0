#pragma once

#include "kernels/device.h"
#include "kernels/view.h"

namespace penstock {

struct RmsNormArgs {
  View<const float, 2> input;   // [tokens, hidden]
  View<const float, 1> weight;  // [hidden]
  View<float, 2> output;        // [tokens, hidden]; may alias input
  float epsilon = 1e-5f;
};

struct LayerNormArgs {
  View<const float, 2> input;   // [tokens, hidden]
  View<const float, 1> weight;  // [hidden]
  View<const float, 1> bias;    // [hidden]
  View<float, 2> output;        // [tokens, hidden]; may alias input
  float epsilon = 1e-5f;
};

// RMS norm of each head of a token separately, in place (Qwen3's norm of queries and keys).
struct RmsNormHeadsArgs {
  View<float, 2> rows;  // [tokens, at least first_column + heads * head_dim]
  int64_t first_column = 0;
  int32_t heads = 0;
  View<const float, 1> weight;  // [head_dim]
  float epsilon = 1e-5f;
};

namespace cpu {
void RmsNorm(const Exec& exec, const RmsNormArgs& args);
void LayerNorm(const Exec& exec, const LayerNormArgs& args);
void RmsNormHeads(const Exec& exec, const RmsNormHeadsArgs& args);
}  // namespace cpu
// RMS norm (Zhang and Sennrich, arXiv 1910.07467): output[t] = input[t] / rms(input[t]) * weight
// for every token t.
inline void RmsNorm(const Exec& exec, const RmsNormArgs& args) { cpu::RmsNorm(exec, args); }

// Layer norm (Ba, Kiros and Hinton, arXiv 1607.06450): output[t] = (input[t] - mean) / deviation *
// weight + bias.
inline void LayerNorm(const Exec& exec, const LayerNormArgs& args) { cpu::LayerNorm(exec, args); }

inline void RmsNormHeads(const Exec& exec, const RmsNormHeadsArgs& args) {
  cpu::RmsNormHeads(exec, args);
}

}  // namespace penstock
