#pragma once

#include <span>

#include "kernels/bf16.h"
#include "kernels/device.h"
#include "kernels/view.h"
#include "kernels/weight_matrix.h"

namespace penstock {

// Embedding lookup. Exactly one of `table` and `matrix` is set.
struct EmbeddingArgs {
  std::span<const uint32_t> tokens;  // [tokens]; each is below the vocabulary size
  View<const Bf16, 2> table = {};    // [vocab, hidden], or null
  // The output matrix if it is tied, or a quantised table; or null.
  const WeightMatrix* matrix = nullptr;
  View<float, 2> output;  // [tokens, hidden]
};

namespace cpu {
void Embedding(const Exec& exec, const EmbeddingArgs& args);
}

// output[t] = the embedding of tokens[t], as f32.
inline void Embedding(const Exec& exec, const EmbeddingArgs& args) { cpu::Embedding(exec, args); }

}  // namespace penstock
