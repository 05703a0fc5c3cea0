#pragma once

#include <span>

#include "kernels/device.h"
#include "kernels/packed_matrix.h"
#include "kernels/view.h"

namespace penstock {

struct EmbeddingArgs {
  std::span<const uint32_t> tokens;      // each below the vocabulary
  View<const Bf16, 2> table = {};        // [vocab, hidden], or null:
  const PackedMatrix* packed = nullptr;  // then rows come from here (tied to the output matrix)
  View<float, 2> output;                 // [tokens, hidden]
};

namespace cpu {
void Embedding(const Exec& exec, const EmbeddingArgs& args);
}

// output[t] = table[tokens[t]]
inline void Embedding(const Exec& exec, const EmbeddingArgs& args) { cpu::Embedding(exec, args); }

}  // namespace penstock
