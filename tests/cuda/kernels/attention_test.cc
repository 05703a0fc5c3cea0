// The attention kernels' own source on the block emulator against a double-precision oracle.

#include "kernels/cuda/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "tests/cuda/cases/attention_case.h"
#include "tests/cuda/emulator/emulator.h"

namespace penstock::cuda {
namespace {

using emulator::Copies;
using emulator::Order;

struct Variant {
  const char* name;
  AttentionCase attention;
};

void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }
std::string NameOf(const testing::TestParamInfo<Variant>& info) { return info.param.name; }

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

class AttentionTest : public testing::TestWithParam<Variant> {};

TEST_P(AttentionTest, IsWhatTheOracleSays) {
  const AttentionCase& attention = GetParam().attention;
  const bool exact = attention.kv.keys == KvCode::kBf16;
  std::vector<uint16_t> first;
  UnderEverySchedule([&] {
    const AttentionResult result = RunAttention(attention);
    // Codes are rounded to bf16 once more.
    EXPECT_LT(result.deviation.relative, exact ? 4e-3 : 8e-3);
    EXPECT_LT(result.deviation.worst, 6e-2);
    if (first.empty()) first = result.bits;
    EXPECT_EQ(result.bits, first);
  });
}

// Wide and narrow tiles have the same bits.
TEST_P(AttentionTest, IsTheSameInTilesOfEitherKind) {
  AttentionCase c = GetParam().attention;
  c.tiles = AttentionTiles::kWide;
  const std::vector<uint16_t> wide = RunAttention(c).bits;
  c.tiles = AttentionTiles::kNarrow;
  EXPECT_EQ(RunAttention(c).bits, wide);
}

using enum KvCode;
INSTANTIATE_TEST_SUITE_P(
    Tokens, AttentionTest,
    testing::Values(
        Variant{"Bf16Lengths",
                {.kv = {.kv_heads = 2, .lengths = {1, 31, 32, 33, 533}}, .rows = {1, 1, 1, 1, 1}}},
        Variant{"Bf16Pages128",
                {.kv = {.kv_heads = 2, .page = 128, .lengths = {590, 77}}, .rows = {1, 1}}},
        Variant{"Bf16Window",
                {.kv = {.lengths = {700, 40, 1100}}, .group = 7, .window = 100, .rows = {1, 1, 1}}},
        Variant{"Bf16Group20", {.kv = {.lengths = {33}}, .group = 20, .rows = {1}}},
        Variant{"Bf16OneHead", {.kv = {.kv_heads = 3, .lengths = {65}}, .group = 1, .rows = {1}}},
        Variant{"Bf16Drafts", {.kv = {.lengths = {515, 40}}, .group = 4, .rows = {5, 3}}},
        Variant{"Bf16Dim64",
                {.kv = {.kv_heads = 2, .head_dim = 64, .lengths = {590, 5}},
                 .group = 8,
                 .rows = {1, 1}}},
        Variant{"F8",
                {.kv = {.keys = kF8, .values = kF8, .kv_heads = 2, .lengths = {530, 31}},
                 .rows = {1, 1}}},
        Variant{"F8Dim64",
                {.kv = {.keys = kF8, .values = kF8, .head_dim = 64, .page = 64, .lengths = {70}},
                 .rows = {1}}},
        Variant{"I8Group12",
                {.kv = {.keys = kI8, .values = kI8, .kv_heads = 2, .lengths = {530, 31}},
                 .group = 12,
                 .rows = {1, 1}}},
        Variant{"I8SmallValues",
                {.kv = {.keys = kI8, .values = kI8, .value_deviation = 1e-6f, .lengths = {120}},
                 .group = 1,
                 .rows = {1}}},
        Variant{"I4Window",
                {.kv = {.keys = kI4, .values = kI4, .page = 32, .lengths = {600}},
                 .group = 8,
                 .window = 130,
                 .rows = {1}}},
        Variant{"I4Dim64",
                {.kv = {.keys = kI4, .values = kI4, .head_dim = 64, .lengths = {90}}, .rows = {1}}},
        Variant{"K8V4",
                {.kv = {.keys = kI8, .values = kI4, .kv_heads = 2, .lengths = {530, 31}},
                 .rows = {1, 1}}},
        Variant{"L3Window",
                {.kv = {.keys = kL3, .values = kL3, .page = 32, .lengths = {600, 17}},
                 .group = 8,
                 .window = 130,
                 .rows = {1, 1}}},
        Variant{"L3Dim64",
                {.kv = {.keys = kL3,
                        .values = kL3,
                        .kv_heads = 2,
                        .head_dim = 64,
                        .page = 128,
                        .lengths = {590, 33, 5}},
                 .group = 7,
                 .rows = {1, 2, 5}}},
        Variant{"L2",
                {.kv = {.keys = kL3, .values = kL2, .kv_heads = 2, .lengths = {530, 31}},
                 .rows = {1, 1}}},
        Variant{"L2Dim64CapSinks",
                {.kv = {.keys = kL3, .values = kL2, .head_dim = 64, .lengths = {530, 90}},
                 .group = 8,
                 .cap = 2,
                 .sinks = true,
                 .rows = {3, 1}}},
        Variant{"Bf16Cap",
                {.kv = {.kv_heads = 2, .lengths = {530, 31, 1}}, .cap = 1, .rows = {1, 1, 1}}},
        Variant{"Bf16Sinks",
                {.kv = {.kv_heads = 2, .lengths = {1100, 31, 1}},
                 .window = 600,
                 .sinks = true,
                 .rows = {1, 1, 1}}},
        Variant{"I8Dim64CapSinks",
                {.kv = {.keys = kI8, .values = kI8, .head_dim = 64, .lengths = {530}},
                 .group = 8,
                 .cap = 2,
                 .sinks = true,
                 .rows = {3}}}),
    NameOf);

INSTANTIATE_TEST_SUITE_P(
    Prompts, AttentionTest,
    testing::Values(
        Variant{"Bf16Whole", {.kv = {.kv_heads = 2, .lengths = {70}}, .group = 2, .rows = {70}}},
        Variant{"Bf16Chunks", {.kv = {.lengths = {100, 33, 5}}, .group = 4, .rows = {40, 1, 5}}},
        Variant{"Bf16Splits", {.kv = {.lengths = {1040}}, .group = 4, .rows = {20}}},
        Variant{"Bf16Window",
                {.kv = {.page = 32, .lengths = {550}}, .group = 3, .window = 40, .rows = {60}}},
        Variant{
            "Bf16Dim64",
            {.kv = {.kv_heads = 2, .head_dim = 64, .lengths = {140}}, .group = 1, .rows = {130}}},
        Variant{"F8", {.kv = {.keys = kF8, .values = kF8, .lengths = {60}}, .rows = {40}}},
        Variant{
            "I8Dim64",
            {.kv = {.keys = kI8, .values = kI8, .head_dim = 64, .lengths = {60}}, .rows = {40}}},
        Variant{"I4", {.kv = {.keys = kI4, .values = kI4, .lengths = {60}}, .rows = {40}}},
        Variant{"K8V4", {.kv = {.keys = kI8, .values = kI4, .lengths = {60}}, .rows = {40}}},
        Variant{
            "L3Splits",
            {.kv = {.keys = kL3, .values = kL3, .kv_heads = 2, .lengths = {540}}, .rows = {25}}},
        Variant{"L3Dim64",
                {.kv = {.keys = kL3, .values = kL3, .head_dim = 64, .page = 32, .lengths = {150}},
                 .group = 1,
                 .rows = {130}}},
        Variant{"L2CapSinks",
                {.kv = {.keys = kL3, .values = kL2, .lengths = {60}},
                 .cap = 2,
                 .sinks = true,
                 .rows = {40}}},
        Variant{
            "L2Dim64",
            {.kv = {.keys = kL3, .values = kL2, .head_dim = 64, .lengths = {60}}, .rows = {40}}},
        Variant{"Bf16Cap", {.kv = {.kv_heads = 2, .lengths = {70}}, .cap = 1, .rows = {70}}},
        Variant{"Bf16Sinks",
                {.kv = {.kv_heads = 2, .lengths = {540}}, .group = 2, .sinks = true, .rows = {60}}},
        Variant{"F8Dim64CapSinks",
                {.kv = {.keys = kF8, .values = kF8, .head_dim = 64, .lengths = {60}},
                 .cap = 2,
                 .sinks = true,
                 .rows = {40}}}),
    NameOf);

// Rows at the beginning, in the middle and at the end of a span, of one span and of several, with
// spans that begin in the middle of a split and at its beginning.
INSTANTIATE_TEST_SUITE_P(
    Spans, AttentionTest,
    testing::Values(
        Variant{"L3Tokens",
                {.kv = {.keys = kL3,
                        .values = kL3,
                        .kv_heads = 2,
                        .lengths = {1, 128, 129, 200, 513, 640, 1100}},
                 .span = 128,
                 .rows = {1, 1, 1, 1, 1, 1, 1}}},
        Variant{"I4Dim64Tokens",
                {.kv = {.keys = kI4,
                        .values = kI4,
                        .head_dim = 64,
                        .page = 128,
                        .lengths = {64, 65, 577, 700}},
                 .group = 7,
                 .span = 64,
                 .rows = {1, 1, 2, 1}}},
        Variant{"L2Drafts",
                {.kv = {.keys = kL3, .values = kL2, .lengths = {130, 515}},
                 .span = 128,
                 .rows = {5, 4}}},
        Variant{"F8Tokens",
                {.kv = {.keys = kF8, .values = kF8, .kv_heads = 2, .page = 32, .lengths = {300}},
                 .span = 192,
                 .rows = {1}}},
        Variant{"L3Prompt",
                {.kv = {.keys = kL3, .values = kL3, .lengths = {150}}, .span = 64, .rows = {150}}},
        Variant{"L3Splits",
                {.kv = {.keys = kL3, .values = kL3, .lengths = {1100}}, .span = 192, .rows = {25}}},
        Variant{"L3Dim64Splits",
                {.kv = {.keys = kL3, .values = kL3, .head_dim = 64, .page = 32, .lengths = {560}},
                 .group = 1,
                 .span = 128,
                 .rows = {130}}},
        Variant{"I4Prompt",
                {.kv = {.keys = kI4, .values = kI4, .lengths = {140}}, .span = 128, .rows = {50}}},
        Variant{"I8Dim64Splits",
                {.kv = {.keys = kI8, .values = kI8, .head_dim = 64, .lengths = {1030}},
                 .group = 2,
                 .span = 1024,
                 .rows = {40}}},
        // The second split begins with codes, behind one tile in bf16.
        Variant{"I8Dim64CodesBehindRecent",
                {.kv = {.keys = kI8, .values = kI8, .head_dim = 64, .lengths = {900}},
                 .group = 4,
                 .span = 448,
                 .rows = {20}}},
        Variant{"K8V4Prompt",
                {.kv = {.keys = kI8, .values = kI4, .lengths = {100}}, .span = 64, .rows = {90}}}),
    NameOf);

// The same of keys without their means, whose rotation is of all dimensions, of some and of none.
INSTANTIATE_TEST_SUITE_P(
    Centred, AttentionTest,
    testing::Values(
        Variant{"L3Tokens",
                {.kv = {.keys = kL3, .values = kL3, .kv_heads = 2, .lengths = {1, 129, 200, 1100}},
                 .span = 128,
                 .centred_dims = 128,
                 .rows = {1, 1, 1, 1}}},
        Variant{"I4Dim64Tokens",
                {.kv = {.keys = kI4,
                        .values = kI4,
                        .head_dim = 64,
                        .page = 128,
                        .lengths = {65, 577, 700}},
                 .group = 7,
                 .span = 64,
                 .centred_dims = 64,
                 .rows = {1, 2, 1}}},
        Variant{"L2Drafts",
                {.kv = {.keys = kL3, .values = kL2, .lengths = {130, 515}},
                 .span = 128,
                 .centred_dims = 0,
                 .rows = {5, 4}}},
        Variant{"L3Splits",
                {.kv = {.keys = kL3, .values = kL3, .lengths = {1100}},
                 .span = 192,
                 .centred_dims = 128,
                 .rows = {25}}},
        Variant{"L3Dim64Splits",
                {.kv = {.keys = kL3, .values = kL3, .head_dim = 64, .page = 32, .lengths = {560}},
                 .group = 1,
                 .span = 128,
                 .centred_dims = 48,
                 .rows = {130}}},
        Variant{"I4Prompt",
                {.kv = {.keys = kI4, .values = kI4, .lengths = {140}},
                 .span = 64,
                 .centred_dims = 96,
                 .rows = {50}}},
        Variant{"I8Prompt",
                {.kv = {.keys = kI8, .values = kI8, .lengths = {150}},
                 .span = 64,
                 .centred_dims = 128,
                 .rows = {50}}},
        Variant{"F8Dim64",
                {.kv = {.keys = kF8, .values = kF8, .head_dim = 64, .lengths = {150}},
                 .span = 64,
                 .centred_dims = 64,
                 .rows = {50}}},
        Variant{"K8V4Prompt",
                {.kv = {.keys = kI8, .values = kI4, .lengths = {150}},
                 .span = 64,
                 .centred_dims = 128,
                 .rows = {90}}}),
    NameOf);

TEST(AttentionInvariance, NeitherBatchNorPageSizeChangesABit) {
  AttentionCase c{.kv = {.kv_heads = 2, .lengths = {200}}, .group = 4, .rows = {1}};
  const std::vector<uint16_t> alone = RunAttention(c).bits;
  c.kv.page = 32;
  EXPECT_EQ(RunAttention(c).bits, alone);
  c.kv.lengths = {200, 20, 600};  // now with splits to merge
  c.rows = {1, 1, 1};
  std::vector<uint16_t> in_a_batch = RunAttention(c).bits;
  in_a_batch.resize(alone.size());
  EXPECT_EQ(in_a_batch, alone);
}

TEST(AttentionInvariance, NeitherChunkNorPageSizeChangesABit) {
  AttentionCase c{.kv = {.lengths = {540}}, .group = 2, .rows = {90}};
  const std::vector<uint16_t> whole = RunAttention(c).bits;
  c.kv.page = 32;
  EXPECT_EQ(RunAttention(c).bits, whole);
  for (const int32_t rows : {40, 13, 1}) {  // wide, narrow, one token
    c.rows = {rows};
    const std::vector<uint16_t> chunk = RunAttention(c).bits;
    const std::vector<uint16_t> end(whole.end() - static_cast<ptrdiff_t>(chunk.size()),
                                    whole.end());
    EXPECT_EQ(chunk, end) << rows;
  }
}

// Queries of several spans, whose tokens are read in either form.
class SpanInvariance : public testing::TestWithParam<int> {};

TEST_P(SpanInvariance, NeitherChunkNorBatchChangesABit) {
  AttentionCase c{.kv = {.keys = kL3, .values = kL3, .lengths = {600}},
                  .group = 2,
                  .span = 128,
                  .centred_dims = GetParam(),
                  .rows = {180}};
  const std::vector<uint16_t> whole = RunAttention(c).bits;
  c.kv.page = 64;
  EXPECT_EQ(RunAttention(c).bits, whole);
  for (const int32_t rows : {120, 90, 13, 1}) {
    c.rows = {rows};
    const std::vector<uint16_t> chunk = RunAttention(c).bits;
    const std::vector<uint16_t> end(whole.end() - static_cast<ptrdiff_t>(chunk.size()),
                                    whole.end());
    EXPECT_EQ(chunk, end) << rows;
  }
  c.kv.lengths = {600, 20, 700};
  c.rows = {1, 20, 1};
  const std::vector<uint16_t> batch = RunAttention(c).bits;
  const size_t token = batch.size() / 22;
  EXPECT_TRUE(std::equal(whole.end() - static_cast<ptrdiff_t>(token), whole.end(), batch.begin()));
}

INSTANTIATE_TEST_SUITE_P(WholeAndCentred, SpanInvariance, testing::Values(-1, 128));

TEST(AttentionPlan, CutsFewRowsAtConstants) {
  const std::vector<AttentionSequence> sequences = {
      {.rows = 1, .position = 0},
      {.first_row = 1, .rows = 1, .position = 511},
      {.first_row = 2, .rows = 1, .position = 512},
      {.first_row = 3, .rows = 5, .position = 1534},  // the first tile ends in the third split
      {.first_row = 8, .rows = 40, .position = 100}};
  const AttentionPlan plan = PlanAttention(sequences, 4);
  std::vector<int32_t> splits, shares;
  for (const AttentionTile& tile : plan.narrow) {
    splits.push_back(tile.splits);
    shares.push_back(tile.first_share);
  }
  EXPECT_EQ(splits, (std::vector<int32_t>{1, 1, 2, 4, 4}));
  EXPECT_EQ(shares, (std::vector<int32_t>{0, 0, 0, 8, 72}));
  EXPECT_EQ(plan.shares, 88);
  EXPECT_EQ(plan.items.size(), 12u);
  for (const SplitItem& item : plan.items) EXPECT_LT(item.split, plan.narrow[item.tile].splits);
  ASSERT_EQ(plan.wide.size(), 2u);
  EXPECT_EQ(plan.wide[0].first, kWideRows);  // the longer history comes first
  EXPECT_EQ(plan.wide[1].first, 0);
}

TEST(AttentionPlan, EndsALaunchWhereATileHasTooManyShares) {
  const std::vector<AttentionSequence> sequences = {
      {.rows = 1, .position = 0},                     // none
      {.first_row = 1, .rows = 5, .position = 1030},  // 3 * 16 and 3 * 4
      {.first_row = 6, .rows = 1, .position = 2600},  // 6 * 4
      {.first_row = 7, .rows = 1, .position = 600}};  // 2 * 4
  const AttentionPlan plan = PlanAttention(sequences, 4, {.launch_shares_max = 40});
  std::vector<AttentionCounts> launches;
  std::vector<int32_t> shares, tiles;
  ForLaunches(plan, {.narrow = plan.narrow.data(), .items = plan.items.data()},
              [&](const AttentionParams& params, const AttentionCounts& counts) {
                launches.push_back(counts);
                for (int i = 0; i < counts.narrow; ++i) {
                  shares.push_back(params.narrow[i].first_share);
                }
                for (int i = 0; i < counts.items; ++i) {
                  tiles.push_back(params.items[i].tile);
                  ASSERT_LT(params.items[i].split, params.narrow[params.items[i].tile].splits);
                }
              });
  ASSERT_EQ(launches.size(), 3u);
  EXPECT_EQ(shares, (std::vector<int32_t>{0, 0, 0, 12, 0}));
  EXPECT_EQ(tiles, (std::vector<int32_t>{0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0}));
  EXPECT_EQ(plan.shares, 48);  // one tile may have more
}

// Tokens of a sequence that share tiles, with others between them that do not ask: some tiles have
// splits and pages that few of their rows see.
class AttentionApart : public testing::TestWithParam<int> {};  // by tokens from one to the next

TEST_P(AttentionApart, EveryRowIsAsInASequenceOfItsOwn) {
  for (const std::vector<int32_t>& rows : {std::vector{40, 5}, {15, 3}}) {  // wide and narrow tiles
    AttentionCase c{.kv = {.lengths = {1300, 300}}, .rows = rows, .apart = GetParam()};
    const AttentionResult together = RunAttention(c);
    EXPECT_LT(together.deviation.relative, 4e-3);
    EXPECT_LT(together.deviation.worst, 6e-2);
    c.alone = true;
    c.oracle = false;
    EXPECT_EQ(RunAttention(c).bits, together.bits) << rows[0];
  }
}

INSTANTIATE_TEST_SUITE_P(Distances, AttentionApart, testing::Values(2, 32));

TEST(AttentionPlan, HasTheSplitsOfTokensThatAreApart) {
  const std::vector<AttentionSequence> sequences = {{.rows = 5, .position = 1996}};
  const std::vector<int32_t> positions = {3, 500, 510, 511, 2000};
  const AttentionPlan plan = PlanAttention(sequences, 4, {}, positions);
  ASSERT_EQ(plan.narrow.size(), 2u);
  EXPECT_EQ(plan.narrow[0].splits, 1);  // of four tokens
  EXPECT_EQ(plan.narrow[1].splits, 4);
}

// Every row's bits, whatever memory its partial sums may take.
TEST(AttentionLaunches, ChangeNoBit) {
  for (const int32_t span : {0, 128}) {
    AttentionCase c{.kv = {.lengths = {1500, 700, 40, 1100}},
                    .span = span,
                    .rows = {9, 3, 1, 120},
                    .oracle = false};
    if (span > 0) c.kv.keys = c.kv.values = kL3;
    const std::vector<uint16_t> together = RunAttention(c).bits;
    c.launch_shares_max = 60;
    EXPECT_EQ(RunAttention(c).bits, together) << span;
  }
}

TEST(AttentionSupport, NamesWhatTheKernelsTake) {
  KvPlanes kv{.head_dim = 128};
  EXPECT_TRUE(SupportsKv(kv));
  kv.keys.code = KvCode::kI8;
  EXPECT_FALSE(SupportsKv(kv));
  kv.values.code = KvCode::kI4;
  EXPECT_TRUE(SupportsKv(kv));
  kv.keys.code = kv.values.code = KvCode::kL3;
  EXPECT_TRUE(SupportsKv(kv));
  kv.keys.code = KvCode::kL2;
  EXPECT_FALSE(SupportsKv(kv));
  kv.keys.code = KvCode::kL3;
  kv.values.code = KvCode::kL2;
  EXPECT_TRUE(SupportsKv(kv));
  kv.head_dim = 96;
  EXPECT_FALSE(SupportsKv(kv));
  kv.head_dim = 64;
  kv.page_log2 = 3;
  EXPECT_FALSE(SupportsKv(kv));
}

// RopeAppend marks so what a code cannot hold: a broken model must not come to look sound.
TEST(NanScales, MakeEveryAnswerNan) {
  for (const auto& [keys, values] :
       {std::pair{kF8, kF8}, {kI8, kI8}, {kI4, kI4}, {kI8, kI4}, {kL3, kL3}, {kL3, kL2}}) {
    for (const int32_t plane : {0, 1}) {
      AttentionCase c{.kv = {.keys = keys,
                             .values = values,
                             .nan_token = 40,
                             .nan_plane = plane,
                             .lengths = {300}},
                      .rows = {3}};
      const auto is_nan = [](uint16_t bits) { return std::isnan(ToFloat(Bf16{bits})); };
      for (const AttentionTiles tiles : {AttentionTiles::kWide, AttentionTiles::kNarrow}) {
        c.tiles = tiles;
        EXPECT_TRUE(std::ranges::all_of(RunAttention(c).bits, is_nan)) << plane;
      }
    }
  }
}

}  // namespace
}  // namespace penstock::cuda
