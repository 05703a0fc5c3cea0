// The attention kernels' own source on the block emulator against a double-precision oracle.

#include "kernels/cuda/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "tests/cuda/attention_case.h"
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

class DecodeTest : public testing::TestWithParam<Variant> {};

TEST_P(DecodeTest, IsWhatTheOracleSays) {
  std::vector<uint16_t> first;
  UnderEverySchedule([&] {
    const AttentionResult result = RunDecode(GetParam().attention);
    EXPECT_LT(result.deviation.relative, 4e-3);
    EXPECT_LT(result.deviation.worst, 4e-2);
    if (first.empty()) first = result.bits;
    EXPECT_EQ(result.bits, first);
  });
}

using enum KvCode;
INSTANTIATE_TEST_SUITE_P(
    Shapes, DecodeTest,
    testing::Values(
        Variant{"Bf16Lengths",
                {.kv = {.kv_heads = 2, .lengths = {1, 15, 16, 17, 333}}, .group = 4}},
        Variant{"Bf16Pages32", {.kv = {.kv_heads = 2, .page = 32, .lengths = {290, 77}}}},
        Variant{"Bf16Window", {.kv = {.lengths = {300, 40, 700}}, .group = 7, .window = 100}},
        Variant{"Bf16Group16", {.kv = {.lengths = {270, 40}}, .group = 16}},
        Variant{"Bf16Group20", {.kv = {.lengths = {33}}, .group = 20}},
        Variant{"Bf16OneHead", {.kv = {.kv_heads = 3, .lengths = {65}}, .group = 1}},
        Variant{"Bf16Dim64",
                {.kv = {.kv_heads = 2, .head_dim = 64, .lengths = {290, 5}}, .group = 8}},
        Variant{"F8", {.kv = {.keys = kF8, .values = kF8, .kv_heads = 2, .lengths = {300, 31}}}},
        Variant{"F8SmallValues",
                {.kv = {.keys = kF8, .values = kF8, .value_deviation = 1e-6f, .lengths = {120}}}},
        Variant{"F8Dim64",
                {.kv = {.keys = kF8, .values = kF8, .head_dim = 64, .page = 64, .lengths = {70}}}},
        Variant{"I8", {.kv = {.keys = kI8, .values = kI8, .kv_heads = 2, .lengths = {300, 31}}}},
        Variant{"I8SmallValues",
                {.kv = {.keys = kI8, .values = kI8, .value_deviation = 1e-6f, .lengths = {120}},
                 .group = 1}},
        Variant{"I8Dim64Group12",
                {.kv = {.keys = kI8, .values = kI8, .head_dim = 64, .lengths = {70}}, .group = 12}},
        Variant{"I4", {.kv = {.keys = kI4, .values = kI4, .kv_heads = 2, .lengths = {200, 31}}}},
        Variant{"I4Window",
                {.kv = {.keys = kI4, .values = kI4, .page = 32, .lengths = {500}},
                 .group = 8,
                 .window = 130}},
        Variant{"I4Dim64", {.kv = {.keys = kI4, .values = kI4, .head_dim = 64, .lengths = {90}}}},
        Variant{"K8V4", {.kv = {.keys = kI8, .values = kI4, .kv_heads = 2, .lengths = {300, 31}}}},
        Variant{"K8V4Dim64",
                {.kv = {.keys = kI8, .values = kI4, .head_dim = 64, .lengths = {90}}}}),
    NameOf);

TEST(DecodeInvariance, NeitherBatchNorPageSizeChangesABit) {
  AttentionCase c{.kv = {.kv_heads = 2, .lengths = {200}}, .group = 4};
  const std::vector<uint16_t> alone = RunDecode(c).bits;
  c.kv.page = 32;
  EXPECT_EQ(RunDecode(c).bits, alone);
  c.kv.lengths = {200, 20, 600};  // now with splits to combine
  std::vector<uint16_t> in_a_batch = RunDecode(c).bits;
  in_a_batch.resize(alone.size());
  EXPECT_EQ(in_a_batch, alone);
}

class PrefillTest : public testing::TestWithParam<Variant> {};

TEST_P(PrefillTest, IsWhatTheOracleSays) {
  const bool exact = GetParam().attention.kv.keys == KvCode::kBf16;
  std::vector<uint16_t> first;
  for (const auto order : emulator::kOrders) {
    const Copies copies = order == Order::kAscending ? Copies::kLate : Copies::kEarly;
    const emulator::ScopedSchedule schedule(copies, order);
    const AttentionResult result = RunPrefill(GetParam().attention);
    // Codes are rounded to bf16 once more.
    EXPECT_LT(result.deviation.relative, exact ? 4e-3 : 8e-3);
    EXPECT_LT(result.deviation.worst, 5e-2);
    if (first.empty()) first = result.bits;
    EXPECT_EQ(result.bits, first);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, PrefillTest,
    testing::Values(
        Variant{"Bf16Whole", {.kv = {.kv_heads = 2, .lengths = {70}}, .group = 2, .rows = {70}}},
        Variant{"Bf16Chunks", {.kv = {.lengths = {100, 33, 5}}, .group = 4, .rows = {40, 1, 5}}},
        Variant{"Bf16Window",
                {.kv = {.page = 32, .lengths = {150}}, .group = 3, .window = 40, .rows = {60}}},
        Variant{
            "Bf16Dim64",
            {.kv = {.kv_heads = 2, .head_dim = 64, .lengths = {140}}, .group = 1, .rows = {130}}},
        Variant{"F8", {.kv = {.keys = kF8, .values = kF8, .lengths = {60}}, .rows = {40}}},
        Variant{
            "I8Dim64",
            {.kv = {.keys = kI8, .values = kI8, .head_dim = 64, .lengths = {60}}, .rows = {40}}},
        Variant{"I4", {.kv = {.keys = kI4, .values = kI4, .lengths = {60}}, .rows = {40}}},
        Variant{"K8V4", {.kv = {.keys = kI8, .values = kI4, .lengths = {60}}, .rows = {40}}}),
    NameOf);

TEST(PrefillInvariance, NeitherChunkNorPageSizeChangesABit) {
  AttentionCase c{.kv = {.lengths = {90}}, .group = 2, .rows = {90}};
  const std::vector<uint16_t> whole = RunPrefill(c).bits;
  c.kv.page = 32;
  EXPECT_EQ(RunPrefill(c).bits, whole);
  c.rows = {13};
  const std::vector<uint16_t> chunk = RunPrefill(c).bits;
  const std::vector<uint16_t> end(whole.end() - static_cast<ptrdiff_t>(chunk.size()), whole.end());
  EXPECT_EQ(chunk, end);
}

TEST(AttentionPlan, CutsAtConstantsAndLeavesOutWhatAWindowHides) {
  const std::vector<int32_t> lengths = {1, 256, 257, 1000};
  const DecodePlan plan = PlanDecode(lengths, 0);
  EXPECT_EQ(plan.split_counts, (std::vector<int32_t>{1, 1, 2, 4}));
  EXPECT_EQ(plan.max_splits, 4);
  EXPECT_EQ(plan.items.size(), 8u);
  EXPECT_EQ(plan.items.front().tile_end - plan.items.front().tile_begin, 16);
  const DecodePlan seen = PlanDecode(lengths, 300);
  EXPECT_EQ(seen.split_counts, (std::vector<int32_t>{1, 1, 2, 2}));
  EXPECT_EQ(seen.items.size(), 6u);
  for (const DecodeItem& item : seen.items) EXPECT_LT(item.tile_begin, item.tile_end);
}

TEST(AttentionSupport, NamesWhatTheKernelsTake) {
  KvPlanes kv{.head_dim = 128};
  EXPECT_TRUE(SupportsKv(kv));
  kv.keys.code = KvCode::kI8;
  EXPECT_FALSE(SupportsKv(kv));
  kv.values.code = KvCode::kI4;
  EXPECT_TRUE(SupportsKv(kv));
  kv.head_dim = 96;
  EXPECT_FALSE(SupportsKv(kv));
  kv.head_dim = 64;
  kv.page_log2 = 3;
  EXPECT_FALSE(SupportsKv(kv));
}

// RopeAppend marks so what a code cannot hold: a broken model must not come to look sound.
TEST(NanScales, MakeEveryAnswerNan) {
  for (const auto& [keys, values] : {std::pair{kF8, kF8}, {kI8, kI8}, {kI4, kI4}, {kI8, kI4}}) {
    for (const int32_t plane : {0, 1}) {
      const AttentionCase c{.kv = {.keys = keys,
                                   .values = values,
                                   .nan_token = 40,
                                   .nan_plane = plane,
                                   .lengths = {300}},
                            .rows = {3}};
      const auto is_nan = [](uint16_t bits) { return std::isnan(ToFloat(Bf16{bits})); };
      EXPECT_TRUE(std::ranges::all_of(RunDecode(c).bits, is_nan)) << plane;
      EXPECT_TRUE(std::ranges::all_of(RunPrefill(c).bits, is_nan)) << plane;
    }
  }
}

}  // namespace
}  // namespace penstock::cuda
