// Norm, rotary embedding with append, and token embedding against double-precision oracles.

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/embedding.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "kernels/rows.h"
#include "tests/kernels/random_data.h"

namespace penstock {
namespace {

class RowOpsTest : public testing::TestWithParam<Isa> {
 protected:
  ScopedIsa isa_{GetParam()};
};

TEST_P(RowOpsTest, RmsNormMatchesTheOracle) {
  RandomData random(1);
  ThreadPool pool(2);
  for (const int64_t hidden : {1, 7, 16, 40, 2048}) {
    for (const int64_t tokens : {1, 3, 50}) {
      const auto x = random.Floats(tokens * hidden), w = random.Floats(hidden);
      std::vector<float> y(x.size());
      RmsNorm({.threads = &pool}, {.input = {x.data(), {tokens, hidden}},
                                   .weight = {w.data(), {hidden}},
                                   .output = {y.data(), {tokens, hidden}},
                                   .epsilon = 1e-5f});
      for (int64_t t = 0; t < tokens; ++t) {
        double sum = 0;
        for (int64_t i = 0; i < hidden; ++i) sum += double{x[t * hidden + i]} * x[t * hidden + i];
        const double scale = 1 / std::sqrt(sum / static_cast<double>(hidden) + 1e-5);
        for (int64_t i = 0; i < hidden; ++i) {
          const double want = x[t * hidden + i] * scale * w[i];
          ASSERT_NEAR(y[t * hidden + i], want, 1e-5 * std::abs(want) + 1e-7) << hidden << " " << i;
        }
      }
    }
  }
}

TEST_P(RowOpsTest, LayerNormMatchesTheOracle) {
  RandomData random(4);
  ThreadPool pool(2);
  for (const int64_t hidden : {2, 7, 16, 40, 2048}) {
    constexpr int64_t kTokens = 20;
    auto x = random.Floats(kTokens * hidden);
    for (float& value : x) value += 3;  // a mean far from 0
    const auto w = random.Floats(hidden), b = random.Floats(hidden);
    std::vector<float> y(x.size());
    LayerNorm({.threads = &pool}, {.input = {x.data(), {kTokens, hidden}},
                                   .weight = {w.data(), {hidden}},
                                   .bias = {b.data(), {hidden}},
                                   .output = {y.data(), {kTokens, hidden}},
                                   .epsilon = 1e-5f});
    for (int64_t t = 0; t < kTokens; ++t) {
      const float* row = x.data() + t * hidden;
      const double mean = std::accumulate(row, row + hidden, 0.0) / static_cast<double>(hidden);
      double squares = 0;
      for (int64_t i = 0; i < hidden; ++i) squares += (row[i] - mean) * (row[i] - mean);
      const double scale = 1 / std::sqrt(squares / static_cast<double>(hidden) + 1e-5);
      for (int64_t i = 0; i < hidden; ++i) {
        const double want = (row[i] - mean) * scale * w[i] + b[i];
        ASSERT_NEAR(y[t * hidden + i], want, 2e-5 * (1 + std::abs(want))) << hidden << " " << i;
      }
    }
  }
}

TEST_P(RowOpsTest, RmsNormHeadsTouchesItsHeadsAlone) {
  RandomData random(2);
  auto rows = random.Floats(20 * 100);
  const auto before = rows, w = random.Floats(24);
  RmsNormHeads({}, {.rows = {rows.data(), {20, 100}},
                    .first_column = 10,
                    .heads = 3,
                    .weight = {w.data(), {24}},
                    .epsilon = 1e-6f});
  for (int64_t t = 0; t < 20; ++t) {
    for (int64_t c = 0; c < 100; ++c) {
      double want = before[t * 100 + c];
      if (c >= 10 && c < 82) {
        double sum = 0;
        const int64_t head = 10 + (c - 10) / 24 * 24;
        for (int64_t i = 0; i < 24; ++i) sum += std::pow(double{before[t * 100 + head + i]}, 2);
        want *= w[c - head] / std::sqrt(sum / 24 + 1e-6);
      }
      ASSERT_NEAR(rows[t * 100 + c], want, 1e-5) << t << " " << c;
    }
  }
}

TEST_P(RowOpsTest, RopeRotatesHalvesAndAppends) {
  RandomData random(3);
  for (const int32_t head_dim : {8, 24, 64, 128}) {
    constexpr int32_t kHeads = 3, kKvHeads = 2;
    constexpr int64_t kTokens = 19;
    const int64_t width = (kHeads + 2 * kKvHeads) * head_dim, half = head_dim / 2;
    auto qkv = random.Floats(kTokens * width);
    const auto before = qkv;
    const auto cosines = random.Floats(kTokens * half), sines = random.Floats(kTokens * half);
    const KvLayout layout{.layers = 2, .kv_heads = kKvHeads, .head_dim = head_dim};
    const Buffer memory(2 * layout.BlockStride());
    const PagedKv kv{.arena = memory.as<std::byte>(), .blocks = 2, .layout = layout};
    std::vector<KvSlot> slots;
    for (int t = 0; t < kTokens; ++t) {
      slots.push_back({.block = static_cast<uint32_t>(1 - t / 16), .slot = t % 16});
    }
    RopeAppend({}, {.qkv = {qkv.data(), {kTokens, width}},
                    .cosines = {cosines.data(), {kTokens, half}},
                    .sines = {sines.data(), {kTokens, half}},
                    .heads = kHeads,
                    .kv = kv,
                    .layer = 1,
                    .slots = slots});
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t c = 0; c < width; ++c) {
        const int64_t head = c / head_dim, d = c % head_dim, i = d % half;
        double want = before[t * width + c];
        if (head < kHeads + kKvHeads) {
          const double partner = before[t * width + head * head_dim + (d + half) % head_dim];
          want = want * cosines[t * half + i] + (d < half ? -1 : 1) * partner * sines[t * half + i];
        }
        ASSERT_NEAR(qkv[t * width + c], want, 1e-5) << t << " " << c;
        if (head < kHeads) continue;
        const bool key = head < kHeads + kKvHeads;
        const auto h = static_cast<int32_t>((head - kHeads) % kKvHeads);
        const Bf16* plane = key ? kv.Keys(slots[t].block, 1, h) : kv.Values(slots[t].block, 1, h);
        ASSERT_EQ(plane[slots[t].slot * head_dim + d].bits, ToBf16(qkv[t * width + c]).bits);
      }
    }
  }
}

TEST_P(RowOpsTest, EmbeddingReadsATableOrAPackedMatrix) {
  RandomData random(4);
  const auto table = random.Bf16s(50 * 22);
  PackedMatrix packed(50, 22);
  for (int64_t i = 0; i < 50; ++i) packed.SetRow(i, table.data() + i * 22);
  const WeightMatrix tied(std::move(packed));
  const std::vector<uint32_t> tokens = {49, 0, 7, 7, 33};
  std::vector<float> from_table(5 * 22), from_packed(5 * 22);
  Embedding({}, {.tokens = tokens,
                 .table = {table.data(), {50, 22}},
                 .output = {from_table.data(), {5, 22}}});
  Embedding({}, {.tokens = tokens, .matrix = &tied, .output = {from_packed.data(), {5, 22}}});
  EXPECT_EQ(from_table, from_packed);
  for (int64_t i = 0; i < 22; ++i) EXPECT_EQ(from_table[i], ToFloat(table[49 * 22 + i]));
}

TEST_P(RowOpsTest, Bf16ConversionRoundsAsTheScalarDoes) {
  std::vector<float> values = {0.0f,
                               -0.0f,
                               1.0f,
                               1.00390625f,
                               1.01171875f,
                               3e-39f,
                               -1e-45f,
                               3.4e38f,
                               std::numeric_limits<float>::infinity(),
                               std::numeric_limits<float>::quiet_NaN()};
  const auto more = RandomData(5).Floats(1000, 1e3f);
  values.insert(values.end(), more.begin(), more.end());
  std::vector<Bf16> got(values.size());
  ActiveSimd().to_bf16(values.data(), static_cast<int64_t>(values.size()), got.data());
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(got[i].bits, ToBf16(values[i]).bits) << values[i];
  }
}

TEST_P(RowOpsTest, RopeOfAPartOfAHeadLeavesTheRest) {
  RandomData random(5);
  constexpr int32_t kHeadDim = 24;
  auto qkv = random.Floats(3 * kHeadDim);
  const auto before = qkv;
  const std::vector<float> cosines(5, 0.0f), sines(5, 1.0f);  // a quarter turn
  const KvLayout layout{.layers = 1, .kv_heads = 1, .head_dim = kHeadDim};
  const Buffer memory(layout.BlockStride());
  const PagedKv kv{.arena = memory.as<std::byte>(), .blocks = 1, .layout = layout};
  const KvSlot slot;
  for (const int64_t pairs : {0, 5}) {
    RopeAppend({}, {.qkv = {qkv.data(), {1, 3 * kHeadDim}},
                    .cosines = {cosines.data(), {1, pairs}},
                    .sines = {sines.data(), {1, pairs}},
                    .heads = 1,
                    .kv = kv,
                    .slots = {&slot, 1}});
    for (int64_t i = 0; i < 2 * kHeadDim; ++i) {
      const int64_t d = i % kHeadDim;
      const float want = d < pairs       ? -before[i + pairs]
                         : d < 2 * pairs ? before[i - pairs]
                                         : before[i];
      EXPECT_EQ(qkv[i], want) << pairs << " " << i;
    }
  }
}

TEST_P(RowOpsTest, AddsRowsWithFactors) {
  RandomData random(6);
  ThreadPool pool(2);
  for (const int64_t width : {1, 7, 40, 100}) {
    const auto x = random.Floats(3 * width), y = random.Floats(5 * width);
    auto all = y, some = y;
    AddRows({.threads = &pool},
            {.input = {x.data(), {3, width}}, .factor = 0.5f, .output = {all.data(), {3, width}}});
    const std::vector<int32_t> rows = {4, 0, 2};
    const std::vector<float> factors = {2, -3, 0.25f};
    AddRowsTo({}, {.input = {x.data(), {3, width}},
                   .rows = rows,
                   .factors = factors,
                   .output = {some.data(), {5, width}}});
    auto want = y;
    std::vector<float> gathered(static_cast<size_t>(3 * width));
    GatherRows(
        {},
        {.input = {y.data(), {5, width}}, .rows = rows, .output = {gathered.data(), {3, width}}});
    for (int64_t t = 0; t < 3; ++t) {
      for (int64_t i = 0; i < width; ++i) {
        want[rows[t] * width + i] += factors[t] * x[t * width + i];
        EXPECT_NEAR(all[t * width + i], y[t * width + i] + 0.5f * x[t * width + i], 1e-6);
        EXPECT_EQ(gathered[t * width + i], y[rows[t] * width + i]);
      }
    }
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(some[i], want[i], 2e-6);
  }
}

TEST_P(RowOpsTest, CapsRowsSmoothly) {
  std::vector<float> rows;
  for (int i = -100; i <= 100; ++i) rows.push_back(static_cast<float>(i) * 4);
  auto scaled = rows;
  const auto width = static_cast<int64_t>(rows.size());
  CapRows({}, {.rows = {scaled.data(), {1, width}}, .factor = 0.5f});
  auto capped = rows;
  CapRows({}, {.rows = {capped.data(), {1, width}}, .factor = 0.5f, .cap = 30});
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(scaled[i], rows[i] / 2);
    EXPECT_NEAR(capped[i], 30 * std::tanh(double{rows[i]} / 60), 1e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, RowOpsTest, testing::ValuesIn(SupportedIsas()), TestName);

}  // namespace
}  // namespace penstock
