#pragma once

#include <cstdint>
#include <span>

#include "kernels/device.h"
#include "kernels/packed_matrix.h"
#include "kernels/paged_kv.h"
#include "kernels/rope.h"
#include "kernels/view.h"

// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) in the form that works
// on latents alone: a head's query is multiplied with the head's key matrix, so that its product
// with a latent is its product with the key that the latent stands for; and attention adds up
// latents, which are multiplied with the head's value matrix afterwards.

namespace penstock {

struct LatentAppendArgs {
  // [tokens, heads * head dimensions]. The last dimensions of each head, as many as the layout's
  // rotated key has, are rotated in place.
  View<float, 2> queries;
  View<float, 2> latents;        // [tokens, head_dim of the layout]; keys are rotated in place
  View<const float, 2> cosines;  // [tokens, rotated pairs], for each token's position
  View<const float, 2> sines;    // [tokens, rotated pairs]
  int32_t heads = 0;
  PagedKv kv;
  int32_t layer = 0;
  std::span<const KvSlot> slots;  // one per token, no two equal
};

// For each head a product of its own: columns [h * input_step, h * input_step + inputs of the
// head's matrix) of the input, to columns from h * output_step on of the output.
struct HeadProductsArgs {
  View<const float, 2> input;  // [rows, at least heads * input_step]
  int64_t input_step = 0;
  std::span<const PackedMatrix> weights;  // [heads]; at most kHeadInputsMax inputs each
  View<float, 2> output;                  // [rows, at least heads * output_step]
  int64_t output_step = 0;
};
inline constexpr int64_t kHeadInputsMax = 1024;

namespace cpu {
void LatentAppend(const Exec& exec, const LatentAppendArgs& args);
void HeadProducts(const Exec& exec, const HeadProductsArgs& args);
}  // namespace cpu

// Rotates queries and keys, as RopeAppend does, and writes the latents with their keys to their
// pages, rounded to bf16.
inline void LatentAppend(const Exec& exec, const LatentAppendArgs& args) {
  cpu::LatentAppend(exec, args);
}

// Each element of the output is one chain of f32 multiply-adds over ascending inputs, as in Gemm:
// its bits do not depend on the other rows or on threads.
inline void HeadProducts(const Exec& exec, const HeadProductsArgs& args) {
  cpu::HeadProducts(exec, args);
}

}  // namespace penstock
