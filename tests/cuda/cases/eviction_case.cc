#include "tests/cuda/cases/eviction_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "kernels/cuda/eviction/eviction.h"

namespace penstock::cuda {
namespace {

constexpr float kScale = 0.2f, kLog2E = 1.44269504f;

// Queries of the last tokens, and a launch over them.
struct AttentionRun {
  AttentionRun(const EvictionCase& of, const KvPoolCase& in)
      : c(of), pool(in), width(of.kv.kv_heads * of.group * of.kv.head_dim) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (int i = 0; i < c.observed * width; ++i) queries.push_back(ToBf16(normal(random)));
  }

  double Query(int token, int head, int element) const {
    return ToFloat(queries[static_cast<size_t>(token) * width + head * c.kv.head_dim + element]);
  }

  // Launches the queries of tokens [0, first), then the others.
  std::vector<float> Run(int first) const {
    const int32_t tokens = pool.lengths[0];
    const DeviceArray<Bf16> there(queries);
    const DeviceArray<float> scores(
        std::vector<float>(static_cast<size_t>(c.kv.kv_heads) * tokens, 0.0f));
    const DeviceArray<float> scratch(
        KeyScoreScratchFloats(tokens, c.kv.kv_heads, c.group, c.kv.head_dim));
    const auto launch = [&](int begin, int end) {
      if (begin == end) return;
      AddKeyAttention({.kv = pool.planes,
                       .table = pool.tables->data(),
                       .tokens = tokens - c.observed + end,
                       .scores = scores.data(),
                       .score_stride = tokens,
                       .scratch = scratch.data(),
                       .queries = there.data() + static_cast<size_t>(begin) * width,
                       .observed = end - begin,
                       .first = tokens - c.observed + begin,
                       .group = c.group,
                       .scale_log2 = kLog2E * (c.cap != 0 ? c.cap : kScale),
                       .cap_factor = c.cap != 0 ? 2 * kLog2E * kScale / c.cap : 0},
                      nullptr);
    };
    launch(0, first);
    launch(first, c.observed);
    return scores.Read();
  }

  const EvictionCase& c;
  const KvPoolCase& pool;
  const int width;
  std::vector<Bf16> queries;
};

std::vector<double> Key(const KvPoolCase& pool, int head, int token) {
  const double* const row = pool.Row(0, 0, head, token);
  return {row, row + pool.planes.head_dim};
}
double Dot(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

std::vector<double> Norms(const KvPoolCase& pool) {
  std::vector<double> scores;
  for (int head = 0; head < pool.planes.kv_heads; ++head) {
    for (int t = 0; t < pool.lengths[0]; ++t) {
      const std::vector<double> key = Key(pool, head, t);
      scores.push_back(-std::sqrt(Dot(key, key)));
    }
  }
  return scores;
}

std::vector<double> Differences(const KvPoolCase& pool) {
  std::vector<double> scores;
  for (int head = 0; head < pool.planes.kv_heads; ++head) {
    std::vector<double> mean(static_cast<size_t>(pool.planes.head_dim));
    for (int t = 0; t < pool.lengths[0]; ++t) {
      const std::vector<double> key = Key(pool, head, t);
      for (size_t e = 0; e < mean.size(); ++e) mean[e] += key[e] / std::sqrt(Dot(key, key));
    }
    for (int t = 0; t < pool.lengths[0]; ++t) {
      const std::vector<double> key = Key(pool, head, t);
      scores.push_back(-Dot(key, mean) / std::sqrt(Dot(key, key) * Dot(mean, mean)));
    }
  }
  return scores;
}

std::vector<double> Attentions(const AttentionRun& run) {
  const int tokens = run.pool.lengths[0], group = run.c.group;
  std::vector<double> sums(static_cast<size_t>(run.c.kv.kv_heads) * tokens);
  for (int head = 0; head < run.c.kv.kv_heads * group; ++head) {
    double* of_head = sums.data() + static_cast<size_t>(head / group) * tokens;
    for (int row = 0; row < run.c.observed; ++row) {
      std::vector<double> query, weights;
      for (int e = 0; e < run.c.kv.head_dim; ++e) query.push_back(run.Query(row, head, e));
      for (int t = 0; t <= tokens - run.c.observed + row; ++t) {
        double score = kScale * Dot(query, Key(run.pool, head / group, t));
        if (run.c.cap != 0) score = run.c.cap * std::tanh(score / run.c.cap);
        weights.push_back(std::exp(score));
      }
      const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
      for (size_t t = 0; t < weights.size(); ++t) of_head[t] += weights[t] / total;
    }
  }
  return sums;
}

std::vector<float> RunKeyScores(KeyScore score, const EvictionCase& c, const KvPoolCase& pool) {
  const int32_t tokens = pool.lengths[0];
  const DeviceArray<float> scores(static_cast<size_t>(c.kv.kv_heads) * tokens);
  const DeviceArray<float> scratch(
      KeyScoreScratchFloats(tokens, c.kv.kv_heads, c.group, c.kv.head_dim));
  const KeyScoreParams params{.kv = pool.planes,
                              .table = pool.tables->data(),
                              .tokens = tokens,
                              .scores = scores.data(),
                              .score_stride = tokens,
                              .scratch = scratch.data()};
  score == KeyScore::kNorm ? ScoreKeyNorms(params, nullptr) : ScoreKeyDifferences(params, nullptr);
  return scores.Read();
}

// The bytes of a slot of a plane and head, with its scale.
std::vector<std::byte> SlotOf(const std::vector<std::byte>& bytes, const KvPoolCase& pool,
                              const KvPlane& plane, int head, const uint32_t* table, int slot) {
  const KvPlanes& kv = pool.planes;
  const int64_t layer =
      kv.layer - pool.pool->data() + int64_t{table[slot >> kv.page_log2]} * kv.block_stride;
  const int in_page = slot & ((1 << kv.page_log2) - 1);
  const auto* codes =
      bytes.data() + layer + plane.offset + head * plane.head_stride + in_page * plane.row_bytes;
  const auto* scale = bytes.data() + layer + plane.scale_offset + head * plane.scale_head_stride +
                      in_page * ScaleBytes(plane.code);
  std::vector<std::byte> slot_bytes(codes, codes + plane.row_bytes);
  slot_bytes.insert(slot_bytes.end(), scale, scale + ScaleBytes(plane.code));
  return slot_bytes;
}

}  // namespace

double KeyScoreDeviation(KeyScore score, const EvictionCase& c) {
  const KvPoolCase pool(c.kv);
  std::vector<double> want;
  std::vector<float> got;
  if (score == KeyScore::kAttention) {
    const AttentionRun run(c, pool);
    want = Attentions(run);
    got = run.Run(c.observed);
  } else {
    want = score == KeyScore::kNorm ? Norms(pool) : Differences(pool);
    got = RunKeyScores(score, c, pool);
  }
  double most = 0, largest = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double off = std::fabs(want[i] - got[i]);
    if (!(off <= most)) most = off;  // keeps NaN
    largest = std::max(largest, std::fabs(want[i]));
  }
  return most / largest;
}

bool KeyAttentionIsTheSameInParts(const EvictionCase& c) {
  const KvPoolCase pool(c.kv);
  const AttentionRun run(c, pool);
  return run.Run(c.observed) == run.Run(c.observed / 3);
}

bool MovedSlotsAreExact(const EvictionCase& c, int32_t kept, bool in_place) {
  const KvPoolCase pool(c.kv);
  std::mt19937 random(11);
  std::vector<uint32_t> all(static_cast<size_t>(pool.lengths[0])), slots;
  std::iota(all.begin(), all.end(), 0u);
  for (int head = 0; head < c.kv.kv_heads; ++head) {
    std::ranges::sample(all, std::back_inserter(slots), kept, random);  // ascending
  }
  const DeviceArray<uint32_t> there(slots);
  const int64_t to = in_place ? 0 : pool.table_stride;
  MoveSlots({.kv = pool.planes,
             .from = pool.tables->data(),
             .to = pool.tables->data() + to,
             .slots = there.data(),
             .kept = kept,
             .in_place = in_place},
            nullptr);
  const std::vector<std::byte> after = pool.pool->Read();
  for (int head = 0; head < c.kv.kv_heads; ++head) {
    for (int32_t i = 0; i < kept; ++i) {
      const auto slot = static_cast<int>(slots[static_cast<size_t>(head * kept + i)]);
      for (const KvPlane& plane : {pool.planes.keys, pool.planes.values}) {
        if (SlotOf(after, pool, plane, head, pool.host_tables.data() + to, i) !=
            SlotOf(pool.bytes, pool, plane, head, pool.host_tables.data(), slot)) {
          return false;
        }
      }
    }
  }
  return true;
}

}  // namespace penstock::cuda
