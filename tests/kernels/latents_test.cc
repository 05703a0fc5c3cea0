// Multi-head latent attention: pages of latents, the products of heads, and attention over latents.

#include "kernels/latents.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cpu/thread_pool.h"
#include "tests/kernels/random_data.h"

namespace penstock {
namespace {

KvLayout Latents(int32_t rank, int32_t rope_dim, int32_t block_tokens = 16) {
  return {.layers = 2,
          .kv_heads = 1,
          .head_dim = rank + rope_dim,
          .block_tokens = block_tokens,
          .latent_rope_dim = rope_dim};
}

TEST(LatentLayout, APageHasOneRowOfATokenAndLayer) {
  const KvLayout layout = Latents(512, 64);
  EXPECT_EQ(layout.LayerBytes(), 16u * 576 * 2);
  EXPECT_EQ(layout.PayloadBytes(), 2u * 16 * 576 * 2);
  EXPECT_EQ(layout.ValueDim(), 512);
  for (const int64_t slot : {0, 1, 15}) {
    EXPECT_EQ(layout.CodesAt(0, KvPlane::kKeys, slot), static_cast<size_t>(slot) * 576 * 2);
    EXPECT_EQ(layout.CodesAt(0, KvPlane::kValues, slot), static_cast<size_t>(slot) * 576 * 2);
  }
}

TEST(LatentLayout, PairsWithItselfOnly) {
  KvLayout keys_and_values = Latents(512, 64);
  keys_and_values.latent_rope_dim = 0;
  KvLayout window = keys_and_values;
  window.window = 64;
  EXPECT_NE(Latents(512, 64).Fingerprint(), keys_and_values.Fingerprint());
  EXPECT_NE(Latents(512, 64).Fingerprint(), window.Fingerprint());
  EXPECT_NE(Latents(512, 64).Fingerprint(), Latents(544, 32).Fingerprint());
  // Other layouts have the fingerprints of releases that knew no latents.
  const KvLayout llama{.layers = 32, .kv_heads = 8, .head_dim = 128};
  EXPECT_EQ(llama.Fingerprint(), 0xbcd64f4a89ac769cu);
  EXPECT_EQ(keys_and_values.Fingerprint(), 0xbdc2a8153c05ba1u);
}

class LatentsTest : public testing::TestWithParam<Isa> {
 protected:
  ScopedIsa isa_{GetParam()};
};

// Matrices of random numbers, and these numbers.
struct Heads {
  Heads(int64_t heads, int64_t outputs, int64_t size, uint64_t seed) : inputs(size) {
    RandomData random(seed);
    for (int64_t h = 0; h < heads; ++h) {
      numbers.push_back(random.Bf16s(outputs * inputs));
      PackedMatrix& matrix = matrices.emplace_back(outputs, inputs);
      for (int64_t row = 0; row < outputs; ++row) {
        matrix.SetRow(row, numbers.back().data() + row * inputs);
      }
    }
  }
  double At(int64_t head, int64_t row, int64_t input) const {
    return ToFloat(numbers[static_cast<size_t>(head)][static_cast<size_t>(row * inputs + input)]);
  }

  int64_t inputs;
  std::vector<PackedMatrix> matrices;
  std::vector<std::vector<Bf16>> numbers;
};

constexpr int64_t kHeadCount = 3, kInputs = 26, kInputStep = 40, kOutputStep = 200;

std::vector<float> Products(const Exec& exec, const Heads& heads, const std::vector<float>& input) {
  const int64_t rows = std::ssize(input) / (kHeadCount * kInputStep);
  std::vector<float> output(static_cast<size_t>(rows * kHeadCount * kOutputStep), 7.0f);
  HeadProducts(exec, {.input = {input.data(), {rows, kHeadCount * kInputStep}},
                      .input_step = kInputStep,
                      .weights = heads.matrices,
                      .output = {output.data(), {rows, kHeadCount * kOutputStep}},
                      .output_step = kOutputStep});
  return output;
}

TEST_P(LatentsTest, EachHeadHasAProductOfItsOwn) {
  constexpr int64_t kRows = 5;
  for (const int64_t outputs : {20, 150, 200}) {
    const Heads heads(kHeadCount, outputs, kInputs, 3);
    const auto input = RandomData(4).Floats(kRows * kHeadCount * kInputStep);
    const auto got = Products({}, heads, input);
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t h = 0; h < kHeadCount; ++h) {
        for (int64_t o = 0; o < kOutputStep; ++o) {
          double want = o < outputs ? 0 : 7;  // what lies between the heads stays
          for (int64_t i = 0; o < outputs && i < kInputs; ++i) {
            const float x = input[(row * kHeadCount + h) * kInputStep + i];
            want += Activation(GetParam(), x) * heads.At(h, o, i);
          }
          ASSERT_NEAR(got[(row * kHeadCount + h) * kOutputStep + o], want, 2e-5) << h << " " << o;
        }
      }
    }
  }
}

TEST_P(LatentsTest, ARowsProductsAreTheSameInEveryBatch) {
  constexpr int64_t kRows = 70, kWidth = kHeadCount * kInputStep;
  const Heads heads(kHeadCount, 160, kInputs, 5);
  const auto input = RandomData(6).Floats(kRows * kWidth);
  ThreadPool pool(3);
  const auto whole = Products({.threads = &pool}, heads, input);
  for (const int64_t rows : {1, 2, 3, 13, 49}) {
    for (int64_t first = 0; first + rows <= kRows; first += rows) {
      const std::vector<float> part(input.begin() + first * kWidth,
                                    input.begin() + (first + rows) * kWidth);
      const auto from = whole.begin() + first * kHeadCount * kOutputStep;
      ASSERT_EQ(Products({}, heads, part),
                std::vector<float>(from, from + rows * kHeadCount * kOutputStep))
          << rows << " rows from " << first;
    }
  }
}

struct Shape {
  int32_t heads;
  int32_t rank;
  int32_t rope_dim;
  int64_t length;

  int64_t Row() const { return rank + rope_dim; }
  int64_t QueryWidth() const { return heads * Row(); }
  int64_t OutputWidth() const { return int64_t{heads} * rank; }
};

// Pages with the first `filled` latents of a sequence; all else is NaN, so that it shows.
struct Pages {
  Pages(const Shape& shape, const std::vector<Bf16>& latents, int64_t filled, int32_t block_tokens)
      : layout(Latents(shape.rank, shape.rope_dim, block_tokens)) {
    const int64_t count = layout.BlocksFor(shape.length) + 1;
    memory = Buffer(static_cast<size_t>(count) * layout.BlockStride());
    std::fill_n(memory.as<Bf16>(), memory.bytes() / 2, Bf16{0x7fc0});
    kv = {.arena = memory.as<std::byte>(), .blocks = count, .layout = layout};
    for (int64_t b = count; b > 0; --b) table.push_back(static_cast<uint32_t>(b - 1));
    for (int64_t p = 0; p < filled; ++p) {
      std::byte* layer = kv.Layer(table[p / block_tokens], 1);
      std::copy_n(
          latents.data() + p * shape.Row(), shape.Row(),
          reinterpret_cast<Bf16*>(layer + layout.CodesAt(0, KvPlane::kKeys, p % block_tokens)));
    }
  }

  KvLayout layout;
  Buffer memory;
  PagedKv kv;
  std::vector<uint32_t> table;
};

struct Case {
  explicit Case(const Shape& of) : shape(of) {
    RandomData random(11);
    queries = random.Floats(of.length * of.QueryWidth(), 0.5f);
    latents = random.Bf16s(of.length * of.Row());
  }

  std::vector<float> Attend(int64_t first, int64_t last, int32_t block_tokens,
                            const Exec& exec) const {
    const Pages pages(shape, latents, last, block_tokens);
    const AttentionScratch scratch(pages.layout.head_dim, ThreadCount(exec));
    std::vector<float> output(static_cast<size_t>((last - first) * shape.OutputWidth()));
    const AttentionSequence sequence{
        .first_row = 0, .rows = last - first, .position = first, .blocks = pages.table};
    Attention(exec, {.queries = {queries.data() + first * shape.QueryWidth(),
                                 {last - first, shape.QueryWidth()}},
                     .output = {output.data(), {last - first, shape.OutputWidth()}},
                     .heads = shape.heads,
                     .kv = pages.kv,
                     .layer = 1,
                     .scale = 0.1f,
                     .sequences = {&sequence, 1},
                     .scratch = &scratch});
    return output;
  }

  // In double precision.
  std::vector<double> At(Isa isa, int64_t position, int64_t head) const {
    const float* query = queries.data() + position * shape.QueryWidth() + head * shape.Row();
    std::vector<double> scores;
    for (int64_t p = 0; p <= position; ++p) {
      double score = 0;
      for (int64_t d = 0; d < shape.Row(); ++d) {
        score += Activation(isa, query[d]) * ToFloat(latents[p * shape.Row() + d]);
      }
      scores.push_back(0.1 * score);
    }
    const double top = *std::max_element(scores.begin(), scores.end());
    for (double& score : scores) score = std::exp(score - top);
    const double sum = std::accumulate(scores.begin(), scores.end(), 0.0);
    std::vector<double> output(static_cast<size_t>(shape.rank));
    for (int64_t p = 0; p <= position; ++p) {
      for (int64_t d = 0; d < shape.rank; ++d) {
        output[static_cast<size_t>(d)] +=
            scores[static_cast<size_t>(p)] / sum * ToFloat(latents[p * shape.Row() + d]);
      }
    }
    return output;
  }

  Shape shape;
  std::vector<float> queries;
  std::vector<Bf16> latents;
};

TEST_P(LatentsTest, AttentionMatchesTheOracle) {
  const double tolerance = GetParam() == Isa::kAvx512Bf16 ? 1e-2 : 2e-5;
  for (const Shape& shape : {Shape{.heads = 16, .rank = 512, .rope_dim = 64, .length = 70},
                             Shape{.heads = 5, .rank = 40, .rope_dim = 16, .length = 140},
                             Shape{.heads = 128, .rank = 32, .rope_dim = 8, .length = 66}}) {
    const Case tested(shape);
    const auto got = tested.Attend(0, shape.length, 16, {});
    for (int64_t p = 0; p < shape.length; p += 23) {
      for (int64_t h = 0; h < shape.heads; h += 5) {
        const auto want = tested.At(GetParam(), p, h);
        for (int64_t d = 0; d < shape.rank; ++d) {
          ASSERT_NEAR(got[p * shape.OutputWidth() + h * shape.rank + d], want[d], tolerance)
              << shape.heads << " heads, position " << p << " head " << h << " dim " << d;
        }
      }
    }
  }
}

// With more threads than tasks the heads are cut into parts.
TEST_P(LatentsTest, ChunksPagesAndThreadsChangeNoBit) {
  ThreadPool few(2), many(9);
  RandomData random(12);
  for (const int32_t heads : {3, 16, 37}) {
    const Shape shape{.heads = heads, .rank = 40, .rope_dim = 16, .length = 150};
    const Case tested(shape);
    const auto whole = tested.Attend(0, shape.length, 16, {});
    for (int64_t first = 0; first < shape.length;) {
      const int64_t last =
          std::min(shape.length, first + (random.Int(0, 1) == 0 ? 1 : random.Int(1, 60)));
      const Exec exec{.threads = random.Int(0, 1) == 0 ? &few : &many};
      const int32_t pages[] = {16, 32, 64};
      ASSERT_EQ(tested.Attend(first, last, pages[random.Int(0, 2)], exec),
                std::vector<float>(whole.begin() + first * shape.OutputWidth(),
                                   whole.begin() + last * shape.OutputWidth()))
          << heads << " heads, rows " << first << ".." << last;
      first = last;
    }
  }
}

// Half of the pair (x, y) is in the first half of the rotated dimensions, half in the second.
TEST_P(LatentsTest, AppendRotatesTheLastDimensionsAndStoresTheRow) {
  const KvLayout layout = Latents(8, 16);
  constexpr int64_t kTokens = 2, kHeads = 2, kQuery = 24;
  Buffer memory(2 * layout.BlockStride());
  const PagedKv kv{.arena = memory.as<std::byte>(), .blocks = 2, .layout = layout};
  RandomData random(13);
  auto queries = random.Floats(kTokens * kHeads * kQuery), latents = random.Floats(kTokens * 24);
  const auto before_queries = queries, before = latents;
  const auto cosines = random.Floats(kTokens * 8), sines = random.Floats(kTokens * 8);
  const KvSlot slots[] = {{.block = 1, .slot = 3}, {.block = 0, .slot = 15}};
  LatentAppend({}, {.queries = {queries.data(), {kTokens, kHeads * kQuery}},
                    .latents = {latents.data(), {kTokens, 24}},
                    .cosines = {cosines.data(), {kTokens, 8}},
                    .sines = {sines.data(), {kTokens, 8}},
                    .heads = kHeads,
                    .kv = kv,
                    .layer = 1,
                    .slots = slots});
  const auto expect_rotated = [&](const float* got, const float* from, int64_t plain, int64_t t) {
    for (int64_t d = 0; d < plain; ++d) EXPECT_EQ(got[d], from[d]);
    for (int64_t i = 0; i < 8; ++i) {
      const float cosine = cosines[t * 8 + i], sine = sines[t * 8 + i];
      const float x = from[plain + i], y = from[plain + 8 + i];
      EXPECT_NEAR(got[plain + i], x * cosine - y * sine, 1e-5);
      EXPECT_NEAR(got[plain + 8 + i], y * cosine + x * sine, 1e-5);
    }
  };
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t h = 0; h < kHeads; ++h) {
      const int64_t at = (t * kHeads + h) * kQuery;
      expect_rotated(queries.data() + at, before_queries.data() + at, kQuery - 16, t);
    }
    expect_rotated(latents.data() + t * 24, before.data() + t * 24, 8, t);
    const auto* stored = reinterpret_cast<const Bf16*>(
        kv.Layer(slots[t].block, 1) + layout.CodesAt(0, KvPlane::kKeys, slots[t].slot));
    for (int64_t d = 0; d < 24; ++d) {
      EXPECT_EQ(stored[d].bits, ToBf16(latents[t * 24 + d]).bits) << d;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, LatentsTest, testing::ValuesIn(SupportedIsas()), TestName);

}  // namespace
}  // namespace penstock
