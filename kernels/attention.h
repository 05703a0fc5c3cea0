#pragma once

#include <cstdint>
#include <span>

#include "kernels/bf16.h"
#include "kernels/buffer.h"
#include "kernels/device.h"
#include "kernels/paged_kv.h"
#include "kernels/view.h"

namespace penstock {

// The queries of one sequence in a batch: rows [first_row, first_row + rows) of the batch are the
// queries at positions [position, position + rows) of the sequence. The pages hold the keys and
// values of all positions below position + rows.
struct AttentionSequence {
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t position = 0;
  std::span<const uint32_t> blocks;  // page ids in order of position (block table)
  // If not 0, every KV head has a block table of its own: `blocks` is [kv_heads][head_blocks].
  // `position` is then the query's own slot in these tables: it attends to all slots before, which
  // are those of some of the sequence's pages.
  int64_t head_blocks = 0;
};

// Owns the scratch memory of Attention: one region per thread for tiles of queries, keys, values
// and scores. Used by one call of Attention at a time. `centred`: also for pages with centred keys.
class AttentionScratch {
 public:
  AttentionScratch() = default;
  AttentionScratch(int32_t head_dim, int threads, bool centred = false);

  std::byte* thread(int index) const { return memory_.as<std::byte>() + index * stride_; }
  int32_t head_dim() const { return head_dim_; }
  bool centred() const { return centred_; }
  size_t bytes() const { return memory_.bytes(); }

 private:
  int32_t head_dim_ = 0;
  bool centred_ = false;
  size_t stride_ = 0;
  Buffer memory_;
};

// The cosines and sines of a rotation at every position, in bf16, as attention multiplies queries
// with them: 2 * head_dim bytes a position. Any thread.
class PositionAngles {
 public:
  PositionAngles() = default;
  // [positions, rotated pairs], with at most head_dim / 2 pairs.
  PositionAngles(View<const float, 2> cosines, View<const float, 2> sines, int32_t head_dim);

  // Positions [64 * tile, 64 * tile + 64) as SimdOps::pack_keys packs keys: a row has the cosines,
  // the sines, and ones for the elements that are not rotated.
  const Bf16* tile(int64_t tile) const { return panels_.as<Bf16>() + tile * tile_elements_; }
  int64_t pairs() const { return pairs_; }
  size_t bytes() const { return panels_.bytes(); }

 private:
  int64_t pairs_ = 0;
  int64_t tile_elements_ = 0;
  Buffer panels_;
};

// The mean of each KV head of a layer, which centred keys (KvPageFormat::centred) do not contain. A
// query's product with the mean at a key's position is a sum of that position's cosines and sines,
// whose factors depend on the query alone. Attention adds it to the key's score.
struct KeyCentre {
  View<const float, 2> means = {};         // [kv_heads, head_dim]; no elements: nothing is left out
  const PositionAngles* angles = nullptr;  // of all positions; not owned
};

struct AttentionArgs {
  View<const float, 2> queries;  // [rows, at least heads * head_dim]
  View<float, 2> output;         // [rows, heads * the layout's ValueDim()]
  int32_t heads = 0;             // a multiple of the layout's kv_heads
  PagedKv kv;                    // head_dim is a multiple of 8, and of 16 in quantised pages
  int32_t layer = 0;             // as it is stored; with a span, the first of the two copies
  int32_t window = 0;            // last positions that a query attends to, itself included; 0: all
  float scale = 1.0f;            // factor of the scores, usually 1 / sqrt(head_dim)
  float cap = 0;                 // scores become cap * tanh(score / cap) (Gemma 2); 0: no cap
  // For each head, a score that takes part in the softmax and has no value (gpt-oss); empty: none.
  std::span<const float> sinks = {};
  std::span<const AttentionSequence> sequences;
  KeyCentre centre = {};  // where kv.layout.centred
  // Not owned. Built for this head_dim and at least as many threads as `exec` has.
  const AttentionScratch* scratch = nullptr;
};

namespace cpu {
void Attention(const Exec& exec, const AttentionArgs& args);
}

// Causal attention, softmax(scale * q k^T) v, for every row of the batch, written to args.output.
// The sum of a softmax begins with the head's sink, if there is one. Tiles of 64 positions, counted
// from position 0 of the sequence, are added in ascending order. The bits of a row therefore depend
// on its own position and window only: not on the other rows of the batch, the prefill chunk or the
// page size. Keys and values are always read from the pages, including those of the chunk itself,
// so a prompt that is computed in any chunks, or taken over from another worker, attends to the
// same numbers. With a span (KvPageFormat) a row reads its own span's second copy, by its position,
// so that all this holds as well; sequences have no `head_blocks` then.
inline void Attention(const Exec& exec, const AttentionArgs& args) { cpu::Attention(exec, args); }

}  // namespace penstock
