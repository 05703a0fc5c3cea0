#include "kernels/eviction/key_scores.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/check.h"
#include "kernels/buffer.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/kv_rows.h"

namespace penstock {
namespace {

constexpr int64_t kScorePanels = kKvTile / kTileColumns;
constexpr int64_t kTileFloats = kTileRows * kTileColumns;

// The keys of one KV head, decoded a tile of kKvTile tokens at a time.
class KeyTiles {
 public:
  KeyTiles(const KeyScoresArgs& args, int32_t kv_head)
      : args_(args),
        kv_head_(kv_head),
        dims_(args.kv.layout.head_dim),
        rows_(static_cast<size_t>(kKvTile * dims_)) {}

  int64_t tiles() const { return (args_.tokens + kKvTile - 1) / kKvTile; }
  int64_t Tokens(int64_t tile) const {
    return std::min<int64_t>(kKvTile, args_.tokens - tile * kKvTile);
  }

  // The keys of a tile, [kKvTile][head_dim]; zeros behind the last token. Valid until the next
  // call.
  const Bf16* Load(int64_t tile) {
    const int64_t begin = tile * kKvTile, end = begin + Tokens(tile);
    const int64_t page = args_.kv.layout.block_tokens;
    for (int64_t token = begin; token < end;) {
      const int64_t slot = token % page;
      const int64_t count = std::min(end - token, page - slot);
      cpu::LoadKvRows(args_.kv,
                      {.block = args_.blocks[static_cast<size_t>(token / page)],
                       .layer = args_.layer,
                       .kv_head = kv_head_,
                       .plane = KvPlane::kKeys,
                       .slot = slot},
                      count, rows_.data() + (token - begin) * dims_);
      token += count;
    }
    std::fill(rows_.begin() + Tokens(tile) * dims_, rows_.end(), Bf16{});
    return rows_.data();
  }

 private:
  const KeyScoresArgs& args_;
  const int32_t kv_head_;
  const int64_t dims_;
  std::vector<Bf16> rows_;
};

// The attention of the observed queries to every token, summed. Two passes, as the sum of a
// softmax's row is known only behind its last key: the first computes maxima and sums, the second
// the weights.
class ObservedAttention {
 public:
  ObservedAttention(const KeyScoresArgs& args, int32_t kv_head)
      : args_(args),
        tiles_(args, kv_head),
        simd_(ActiveSimd()),
        kv_head_(kv_head),
        group_(args.heads / args.kv.layout.kv_heads),
        dims_(args.kv.layout.head_dim),
        rows_(args.queries.dim(0) * group_),
        blocks_((rows_ + kTileRows - 1) / kTileRows),
        queries_(static_cast<size_t>(rows_ * dims_ * simd_.activation_bytes)),
        keys_(static_cast<size_t>(kKvTile * dims_) * sizeof(Bf16)),
        tile_(static_cast<size_t>(kScorePanels * kTileFloats) * sizeof(float)),
        max_(static_cast<size_t>(rows_), -std::numeric_limits<float>::infinity()),
        sum_(static_cast<size_t>(rows_), 0.0f) {
    PackQueries();
  }

  void AddTo(float* scores) {
    for (int64_t tile = 0; tile < tiles_.tiles(); ++tile) {
      PackKeys(tile);
      for (int64_t row = 0; row < rows_; ++row) Measure(tile, row);
    }
    for (int64_t tile = 0; tile < tiles_.tiles(); ++tile) {
      PackKeys(tile);
      for (int64_t row = 0; row < rows_; ++row) AddWeights(tile, row, scores + tile * kKvTile);
    }
  }

 private:
  int64_t FirstRow(int64_t block) const { return rows_ * block / blocks_; }
  int Rows(int64_t block) const { return static_cast<int>(FirstRow(block + 1) - FirstRow(block)); }
  // The tokens that the row's query attends to.
  int64_t Attended(int64_t row) const {
    return args_.tokens - args_.queries.dim(0) + row / group_ + 1;
  }
  std::byte* Queries(int64_t block) {
    return queries_.as<std::byte>() + FirstRow(block) * dims_ * simd_.activation_bytes;
  }

  void PackQueries() {
    std::vector<float> rows(static_cast<size_t>(kTileRows * dims_));
    for (int64_t block = 0; block < blocks_; ++block) {
      for (int r = 0; r < Rows(block); ++r) {
        const int64_t row = FirstRow(block) + r;
        const float* query =
            args_.queries.row(row / group_) + (kv_head_ * group_ + row % group_) * dims_;
        std::copy_n(query, dims_, rows.data() + r * dims_);
      }
      if (args_.kv.layout.IsRotated(KvPlane::kKeys)) {
        cpu::RotateRows(rows.data(), Rows(block), static_cast<int32_t>(dims_));
      }
      simd_.pack_rows(rows.data(), dims_, Rows(block), 0, dims_, Queries(block));
    }
  }

  void PackKeys(int64_t tile) {
    const Bf16* loaded = tiles_.Load(tile);
    const Bf16* rows[kKvTile];
    for (int64_t i = 0; i < kKvTile; ++i) rows[i] = loaded + i * dims_;
    simd_.pack_keys(rows, dims_, keys_.as<Bf16>());
    block_ = -1;
  }

  // The scores of a row and the tile: those of all rows of its block are computed with the first.
  SoftmaxRowArgs Softmax(int64_t tile, int64_t row, float* max, float* sum, void* weights) {
    if (block_ < 0 || row >= FirstRow(block_ + 1)) MultiplyBlock(block_ + 1);
    const float* scores = tile_.as<float>() + (row - FirstRow(block_)) * kTileColumns;
    const int64_t attended = Attended(row) - tile * kKvTile;
    return {.scores = {scores, scores + kTileFloats},
            .first = 0,
            .last = static_cast<int>(std::min<int64_t>(attended, kKvTile)),
            .scale = args_.scale,
            .cap = args_.cap,
            .max = max,
            .sum = sum,
            .weights = weights};
  }

  void MultiplyBlock(int64_t block) {
    block_ = block;
    for (int64_t panel = 0; panel < kScorePanels; ++panel) {
      float* scores = tile_.as<float>() + panel * kTileFloats;
      std::fill_n(scores, Rows(block) * kTileColumns, 0.0f);
      simd_.multiply_tile(Rows(block), dims_ / 2, Queries(block),
                          keys_.as<Bf16>() + panel * dims_ * kTileColumns, scores);
    }
  }

  bool Attends(int64_t tile, int64_t row) const { return Attended(row) > tile * kKvTile; }

  void Measure(int64_t tile, int64_t row) {
    const SoftmaxRowArgs softmax = Softmax(tile, row, &max_[static_cast<size_t>(row)],
                                           &sum_[static_cast<size_t>(row)], weights_);
    if (Attends(tile, row)) simd_.softmax_row(softmax);
  }

  void AddWeights(int64_t tile, int64_t row, float* scores) {
    float max = max_[static_cast<size_t>(row)], unused = 0;
    const SoftmaxRowArgs softmax = Softmax(tile, row, &max, &unused, weights_);
    if (!Attends(tile, row)) return;
    simd_.softmax_row(softmax);
    alignas(64) float weights[kKvTile];
    if (simd_.activation_bytes == sizeof(float)) {
      std::copy_n(reinterpret_cast<const float*>(weights_), kKvTile, weights);
    } else {
      simd_.to_float(reinterpret_cast<const Bf16*>(weights_), kKvTile, weights);
    }
    const float inverse = 1.0f / sum_[static_cast<size_t>(row)];
    for (int64_t i = 0; i < tiles_.Tokens(tile); ++i) scores[i] += weights[i] * inverse;
  }

  const KeyScoresArgs& args_;
  KeyTiles tiles_;
  const SimdOps& simd_;
  const int64_t kv_head_;
  const int64_t group_;  // query heads of a KV head
  const int64_t dims_;
  const int64_t rows_;  // pairs of an observed token and a query head of the group
  const int64_t blocks_;
  Buffer queries_;                // packed, by block
  Buffer keys_;                   // packed, of one tile
  Buffer tile_;                   // scores of one block and tile
  int64_t block_ = -1;            // of tile_
  std::vector<float> max_, sum_;  // by row
  alignas(64) std::byte weights_[kKvTile * sizeof(float)];
};

// Calls `use` with every key of the head, as floats, and its token.
template <class Use>
void ForKeys(const KeyScoresArgs& args, int32_t kv_head, const Use& use) {
  KeyTiles tiles(args, kv_head);
  const int64_t dims = args.kv.layout.head_dim;
  std::vector<float> keys(static_cast<size_t>(kKvTile * dims));
  for (int64_t tile = 0; tile < tiles.tiles(); ++tile) {
    ActiveSimd().to_float(tiles.Load(tile), kKvTile * dims, keys.data());
    for (int64_t i = 0; i < tiles.Tokens(tile); ++i) {
      use(tile * kKvTile + i, keys.data() + i * dims);
    }
  }
}

float Norm(const float* x, int64_t dims) { return std::sqrt(ActiveSimd().dot(x, x, dims)); }

void ScoreDifference(const KeyScoresArgs& args, int32_t kv_head, float* scores) {
  const int64_t dims = args.kv.layout.head_dim;
  std::vector<float> mean(static_cast<size_t>(dims), 0.0f);
  ForKeys(args, kv_head, [&](int64_t, const float* key) {
    const float norm = Norm(key, dims);
    if (norm > 0) ActiveSimd().add_scaled(key, 1 / norm, dims, mean.data());
  });
  const float mean_norm = Norm(mean.data(), dims);
  ForKeys(args, kv_head, [&](int64_t token, const float* key) {
    const float norms = Norm(key, dims) * mean_norm;
    scores[token] = norms > 0 ? -ActiveSimd().dot(key, mean.data(), dims) / norms : 0.0f;
  });
}

// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

void ScoreHead(const KeyScoresArgs& args, int32_t kv_head) {
  if (args.scoring == KeyScoring::kGiven) return;
  float* scores = args.scores.row(kv_head);
  std::fill_n(scores, args.tokens, 0.0f);
  switch (args.scoring) {
    case KeyScoring::kAttention:
    case KeyScoring::kLayerAttention:
      return ObservedAttention(args, kv_head).AddTo(scores);
    case KeyScoring::kKeyDifference:
      return ScoreDifference(args, kv_head, scores);
    case KeyScoring::kKeyNorm:
      return ForKeys(args, kv_head, [&](int64_t token, const float* key) {
        scores[token] = -Norm(key, args.kv.layout.head_dim);
      });
    case KeyScoring::kRandom: {
      const uint64_t head = Mix((static_cast<uint64_t>(args.layer) << 32) + kv_head);
      for (int64_t i = 0; i < args.tokens; ++i) {
        const uint64_t slot = static_cast<uint64_t>(args.evicted) << 32 | static_cast<uint64_t>(i);
        scores[i] = static_cast<float>(Mix(head + slot) >> 40);
      }
      return;
    }
    case KeyScoring::kGiven:
    case KeyScoring::kNone:
      return;
  }
}

void CheckQueries(const KeyScoresArgs& args) {
  PENSTOCK_CHECK_EQ(args.heads % args.kv.layout.kv_heads, 0);
  PENSTOCK_CHECK_GE(args.queries.dim(0), 1);
  PENSTOCK_CHECK_LE(args.queries.dim(0), args.tokens);
}

}  // namespace

void ShareAmongHeads(const KeyScoresArgs& args) {
  const int64_t heads = args.kv.layout.kv_heads;
  for (int64_t head = 1; head < heads; ++head) {
    ActiveSimd().add_scaled(args.scores.row(head), 1.0f, args.tokens, args.scores.row(0));
  }
  for (int64_t head = 1; head < heads; ++head) {
    std::copy_n(args.scores.row(0), args.tokens, args.scores.row(head));
  }
}

void ScoreKeys(const Exec& exec, const KeyScoresArgs& args) {
  const KvLayout& layout = args.kv.layout;
  PENSTOCK_CHECK_EQ(args.scores.dim(0), layout.kv_heads);
  PENSTOCK_CHECK_EQ(args.scores.dim(1), args.tokens);
  PENSTOCK_CHECK_GE(static_cast<int64_t>(args.blocks.size()), layout.BlocksFor(args.tokens));
  const bool observes =
      args.scoring == KeyScoring::kAttention || args.scoring == KeyScoring::kLayerAttention;
  if (observes) CheckQueries(args);
  ParallelFor(exec, layout.kv_heads,
              [&](int64_t head, int) { ScoreHead(args, static_cast<int32_t>(head)); });
  if (args.scoring == KeyScoring::kLayerAttention) ShareAmongHeads(args);
}

void AddAttention(const Exec& exec, const KeyScoresArgs& args) {
  const KvLayout& layout = args.kv.layout;
  PENSTOCK_CHECK_EQ(args.scores.dim(0), layout.kv_heads);
  PENSTOCK_CHECK_GE(args.scores.dim(1), args.tokens);
  PENSTOCK_CHECK_GE(static_cast<int64_t>(args.blocks.size()), layout.BlocksFor(args.tokens));
  CheckQueries(args);
  ParallelFor(exec, layout.kv_heads, [&](int64_t head, int) {
    ObservedAttention(args, static_cast<int32_t>(head)).AddTo(args.scores.row(head));
  });
}

}  // namespace penstock
