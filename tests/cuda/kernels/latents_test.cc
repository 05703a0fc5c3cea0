// The kernels of latent attention on the block emulator against oracles in double precision.

#include "kernels/cuda/latents/latents.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/cuda/cases/latents_case.h"
#include "tests/cuda/emulator/emulator.h"

namespace penstock::cuda {
namespace {

using emulator::Copies;

// Both ends of what the hardware may do with copies, and of how far a thread may run ahead.
template <class Run>
void UnderEverySchedule(const Run& run) {
  for (const Copies copies : {Copies::kLate, Copies::kEarly}) {
    for (const auto order : emulator::kOrders) {
      const emulator::ScopedSchedule schedule(copies, order);
      run();
    }
  }
}

struct Variant {
  const char* name;
  LatentCase attention;
};
void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

class LatentAttentionTest : public testing::TestWithParam<Variant> {};

TEST_P(LatentAttentionTest, IsWhatTheOracleSays) {
  std::vector<uint16_t> first;
  LatentCase c = GetParam().attention;
  UnderEverySchedule([&] {
    c.oracle = first.empty();
    const AttentionResult result = RunLatentAttention(c);
    if (first.empty()) {
      first = result.bits;
      EXPECT_LT(result.deviation.relative, 4e-3);
      EXPECT_LT(result.deviation.worst, 6e-2);
    }
    EXPECT_EQ(result.bits, first);
  });
}

TEST_P(LatentAttentionTest, IsTheSameInTilesOfEitherKind) {
  LatentCase c = GetParam().attention;
  c.oracle = false;
  c.tiles = AttentionTiles::kWide;
  const std::vector<uint16_t> wide = RunLatentAttention(c).bits;
  c.tiles = AttentionTiles::kNarrow;
  EXPECT_EQ(RunLatentAttention(c).bits, wide);
}

INSTANTIATE_TEST_SUITE_P(
    Latents, LatentAttentionTest,
    testing::Values(Variant{"Lengths", {.lengths = {1, 31, 32, 33, 533}, .rows = {1, 1, 1, 1, 1}}},
                    Variant{"Heads128", {.heads = 128, .page = 64, .lengths = {40}, .rows = {1}}},
                    Variant{"Heads20", {.heads = 20, .page = 32, .lengths = {530}, .rows = {1}}},
                    Variant{"Heads6Prompt", {.heads = 6, .lengths = {70}, .rows = {70}}},
                    Variant{"Heads3Chunks",
                            {.heads = 3, .lengths = {545, 100, 5}, .rows = {21, 50, 5}}},
                    Variant{"Splits", {.heads = 16, .lengths = {1040}, .rows = {10}}}),
    [](const auto& variant) { return std::string(variant.param.name); });

TEST(LatentAttentionInvariance, NeitherBatchNorPageSizeChangesABit) {
  LatentCase c{.lengths = {200}, .rows = {1}, .oracle = false};
  const std::vector<uint16_t> alone = RunLatentAttention(c).bits;
  c.page = 32;
  EXPECT_EQ(RunLatentAttention(c).bits, alone);
  c.lengths = {200, 20, 600};  // now with splits to merge
  c.rows = {1, 30, 1};
  std::vector<uint16_t> in_a_batch = RunLatentAttention(c).bits;
  in_a_batch.resize(alone.size());
  EXPECT_EQ(in_a_batch, alone);
}

TEST(LatentAttentionInvariance, NoChunkChangesABit) {
  LatentCase c{.heads = 10, .lengths = {540}, .rows = {50}, .oracle = false};
  const std::vector<uint16_t> whole = RunLatentAttention(c).bits;
  for (const int32_t rows : {33, 7, 1}) {
    c.rows = {rows};
    const std::vector<uint16_t> chunk = RunLatentAttention(c).bits;
    EXPECT_TRUE(std::equal(chunk.begin(), chunk.end(), whole.end() - std::ssize(chunk))) << rows;
  }
}

TEST(LatentPlan, SplitsOneTokenOfEveryHead) {
  const AttentionPlan plan =
      PlanAttention(std::vector<AttentionSequence>{{.rows = 1, .position = 600},
                                                   {.first_row = 1, .rows = 2, .position = 600}},
                    /*group=*/128, kLatentTiles);
  EXPECT_EQ(plan.narrow.size(), 8u);
  EXPECT_EQ(plan.items.size(), 16u);
  EXPECT_EQ(plan.shares, 256);
  EXPECT_EQ(plan.wide.size(), 16u);
}

TEST(LatentPlan, LimitsTheMemoryOfShares) {
  std::vector<AttentionSequence> sequences;
  for (int32_t i = 0; i < 100; ++i) {
    sequences.push_back({.first_row = i, .rows = 1, .position = i == 99 ? 0 : 5000});
  }
  const AttentionPlan plan = PlanAttention(sequences, /*group=*/128, kLatentTiles);
  EXPECT_EQ(plan.shares, 50 * 1280);
  EXPECT_EQ(plan.narrow.size(), 51u * 8);  // the last needs no shares
  EXPECT_EQ(plan.wide.size(), 49u * 8);
  EXPECT_LE(NarrowScratchBytes(plan.shares, 1, kLatentRank), size_t{128} << 20);
}

TEST(LatentSupport, NamesWhatTheKernelsTake) {
  const KvPlanes right{.kv_heads = 1, .head_dim = kLatentRow};
  EXPECT_TRUE(SupportsLatents(right));
  const auto with = [&](auto change) {
    KvPlanes kv = right;
    change(kv);
    return SupportsLatents(kv);
  };
  EXPECT_FALSE(with([](KvPlanes& kv) { kv.head_dim = 128; }));
  EXPECT_FALSE(with([](KvPlanes& kv) { kv.kv_heads = 2; }));
  EXPECT_FALSE(with([](KvPlanes& kv) { kv.page_log2 = 3; }));
  EXPECT_FALSE(with([](KvPlanes& kv) { kv.keys.code = KvCode::kF8; }));
}

TEST(HeadProducts, AreWhatTheOracleSays) {
  for (const HeadProductCase& c :
       {HeadProductCase{}, HeadProductCase{.heads = 1, .rows = 1, .inputs = 8},
        HeadProductCase{.rows = 17, .inputs = 24, .outputs = 72, .input_step = 88},
        HeadProductCase{.rows = 33, .inputs = 128, .outputs = 512, .input_step = 192},
        HeadProductCase{.heads = 2, .rows = 130, .inputs = 512, .input_step = 512},
        HeadProductCase{.rows = 70, .inputs = 40, .outputs = 136}}) {
    UnderEverySchedule([&] { EXPECT_LT(HeadDeviation(c), 8e-3) << c.rows; });
  }
}

TEST(HeadProducts, AreOfTheirRow) {
  for (const int32_t rows : {5, 11, 30, 64, 65}) {
    EXPECT_TRUE(HeadProductsAreOfTheirRow(
        {.heads = 2, .rows = rows, .inputs = 200, .outputs = 48, .input_step = 264}))
        << rows;
  }
}

TEST(LatentRows, AreNormalised) {
  for (const int width : {40, 512, 1536}) {
    UnderEverySchedule([&] { EXPECT_LT(LatentNormDeviation(3, width, 2, 1), 8e-3) << width; });
  }
}

TEST(LatentRows, AreStored) {
  for (const LatentRowsCase& c : {LatentRowsCase{}, LatentRowsCase{.rows = 19, .slices = 3},
                                  LatentRowsCase{.rows = 9, .page = 64}}) {
    EXPECT_LT(LatentAppendDeviation(c), 8e-3) << c.rows;
  }
}

TEST(LatentRows, QueriesAreRotated) {
  for (const LatentRowsCase& c : {LatentRowsCase{}, LatentRowsCase{.rows = 3, .slices = 2},
                                  LatentRowsCase{.heads = 16, .plain_dims = 136}}) {
    EXPECT_LT(LatentQueriesDeviation(c), 8e-3) << c.rows;
  }
}

}  // namespace
}  // namespace penstock::cuda
