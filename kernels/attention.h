#pragma once

#include <cstdint>
#include <span>

#include "kernels/buffer.h"
#include "kernels/device.h"
#include "kernels/paged_kv.h"
#include "kernels/view.h"

namespace penstock {

// The queries that one sequence has in a batch: rows [first_row, first_row + rows) are those at
// positions [position, position + rows). Keys and values up to there are in the pages.
struct AttentionSequence {
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t position = 0;
  std::span<const uint32_t> blocks;  // block table
};

// Per-thread memory for tiles of queries, keys, values and scores.
class AttentionScratch {
 public:
  AttentionScratch() = default;
  AttentionScratch(int32_t head_dim, int threads);

  std::byte* thread(int index) const { return memory_.as<std::byte>() + index * stride_; }
  int32_t head_dim() const { return head_dim_; }
  size_t bytes() const { return memory_.bytes(); }

 private:
  int32_t head_dim_ = 0;
  size_t stride_ = 0;
  Buffer memory_;
};

struct AttentionArgs {
  View<const float, 2> queries;  // [rows, at least heads * head_dim]
  View<float, 2> output;         // [rows, heads * head_dim]
  int32_t heads = 0;             // a multiple of the layout's kv_heads
  PagedKv kv;                    // head_dim a multiple of 8; of 16 in quantised pages
  int32_t layer = 0;
  int32_t window = 0;  // the number of last positions a query attends to, itself included; 0 = all
  float scale = 1.0f;  // of the scores
  std::span<const AttentionSequence> sequences;
  const AttentionScratch* scratch = nullptr;
};

namespace cpu {
void Attention(const Exec& exec, const AttentionArgs& args);
}

// Causal softmax(q k^T * scale) v for every row, over tiles of 64 positions counted from position 0
// of its sequence, in ascending order: a row's bits depend on its own position and window only, not
// on the other rows, the chunk it came in, or the size of a page. Keys and values are what the
// pages hold, those of the chunk itself too: a prompt computed in chunks of any size, or taken over
// from another worker, attends to the same numbers.
inline void Attention(const Exec& exec, const AttentionArgs& args) { cpu::Attention(exec, args); }

}  // namespace penstock
