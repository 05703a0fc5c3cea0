#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>

#include "kernels/kv_rows.h"
#include "tests/cuda/cases/kv_pool_case.h"
#include "tests/cuda/cases/row_case.h"
#include "tests/cuda/emulator/emulator.h"

namespace penstock::cuda {
namespace {

using emulator::Order;
using enum KvCode;

TEST(RowOps, AreWhatTheOraclesSay) {
  for (const auto order : emulator::kOrders) {
    const emulator::ScopedSchedule schedule(emulator::Copies::kLate, order);
    for (const int hidden : {8, 256, 1000}) {
      EXPECT_LT(NormDeviation({.hidden = hidden}, 1), 5e-3) << hidden;
      EXPECT_LT(NormDeviation({.rows = 2, .hidden = hidden, .slices = 4}, 2), 5e-3) << hidden;
      EXPECT_LT(SiluDeviation(3, hidden, 2, 3), 5e-3) << hidden;
      EXPECT_TRUE(EmbeddingIsExact(5, hidden, 4));
      EXPECT_TRUE(GatherRowsIsExact(5, hidden, 5));
      EXPECT_TRUE(SumSlicesIsExact(3, hidden, 4, 6));
    }
    EXPECT_LT(NormDeviation({.hidden = 512, .slices = 0}, 6), 5e-3);
  }
}

TEST(RowOps, NormRowsOfAnyLength) {
  for (const int hidden : {1028, 2052, 4100, 8196, 16384}) {
    EXPECT_LT(NormDeviation({.rows = 2, .hidden = hidden, .slices = 2}, 7), 5e-3) << hidden;
    EXPECT_LT(
        NormDeviation(
            {.rows = 2, .hidden = hidden, .slices = 2, .layer_norm = true, .product_norm = true},
            7),
        5e-3)
        << hidden;
  }
}

// What a model may have besides Llama's norms, each alone and together.
TEST(RowOps, NormsOfOtherModels) {
  const NormCase cases[] = {
      {.norm = false},
      {.layer_norm = true},
      {.slices = 3, .product_norm = true, .product_bias = true},
      {.factor = 0.22f},
      {.norms_first = true},
      {.slices = 0, .layer_norm = true},
      {.slices = 0, .norm = false, .product_norm = true},
      {.hidden = 1000, .slices = 2, .layer_norm = true, .product_bias = true, .norms_first = true},
      {.hidden = 1000, .norm = false, .product_norm = true, .factor = 3},
      {.hidden = 1300, .product_norm = true, .factor = 3, .norms_first = true}};
  for (const auto order : emulator::kOrders) {
    const emulator::ScopedSchedule schedule(emulator::Copies::kLate, order);
    for (size_t i = 0; i < std::size(cases); ++i) {
      EXPECT_LT(NormDeviation(cases[i], 8 + i), 5e-3) << i;
    }
  }
}

TEST(RowOps, OfOtherModels) {
  for (const auto order : emulator::kOrders) {
    const emulator::ScopedSchedule schedule(emulator::Copies::kLate, order);
    for (const auto kind : {GeluKind::kTanhGate, GeluKind::kTanh, GeluKind::kExact}) {
      EXPECT_LT(GeluDeviation(kind, 3, 8, 1, 1), 5e-3);
      EXPECT_LT(GeluDeviation(kind, 2, 1400, 3, 2), 5e-3);
    }
    EXPECT_LT(WideHeadNormDeviation({}, 3), 1e-5);
    EXPECT_LT(
        WideHeadNormDeviation({.rows = 2, .query_width = 1344, .key_width = 64, .slices = 3}, 4),
        1e-5);
    for (const int hidden : {8, 1400}) {
      EXPECT_LT(PlacedEmbeddingDeviation(false, 3, hidden, 5), 1e-6);
      EXPECT_LT(PlacedEmbeddingDeviation(true, 3, hidden, 6), 1e-6);
    }
    EXPECT_LT(CapSlicesDeviation(0.25f, 0, 3, 300, 2, 7), 1e-6);
    EXPECT_LT(CapSlicesDeviation(0.5f, 2, 3, 300, 1, 8), 1e-6);
    EXPECT_LT(CapSlicesDeviation(1, 30, 3, 300, 1, 9), 1e-5);
  }
}

class RopeAppendTest : public testing::TestWithParam<RopeCase> {};

TEST_P(RopeAppendTest, RotatesAndKeeps) {
  for (const auto order : emulator::kOrders) {
    const emulator::ScopedSchedule schedule(emulator::Copies::kLate, order);
    const RopeDeviation deviation = RunRopeAppend(GetParam());
    EXPECT_LT(deviation.queries, 5e-3);
    EXPECT_LT(deviation.centre, 5e-3);
    EXPECT_LT(deviation.kept, 1.0);
    EXPECT_TRUE(deviation.untouched);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, RopeAppendTest,
    testing::Values(
        RopeCase{}, RopeCase{.head_dim = 64, .rows = 33, .slices = 3},
        RopeCase{.page = 32, .rows = 40, .norms = true},
        RopeCase{.head_dim = 64, .norms = true, .bias = true},
        RopeCase{.rows = 9, .rotary_dims = 32, .norms = true},
        RopeCase{.head_dim = 64, .rotary_dims = 16, .bias = true},
        RopeCase{.head_dim = 64, .rotary_dims = 24}, RopeCase{.rotary_dims = 96},
        RopeCase{.rotary_dims = 0, .norms = true},
        RopeCase{.keys = kI4, .values = kI4, .rotary_dims = 64, .rotated = true},
        RopeCase{.keys = kF8, .values = kF8},
        RopeCase{.keys = kF8, .values = kF8, .head_dim = 64, .deviation = 1e-4f},
        RopeCase{.keys = kF8, .values = kF8, .deviation = 300.0f},
        RopeCase{.keys = kI8, .values = kI8, .rows = 20},
        RopeCase{.keys = kI8, .values = kI4, .head_dim = 64},
        RopeCase{.keys = kI4, .values = kI4, .rotated = true},
        RopeCase{.keys = kI4, .values = kI4, .head_dim = 64, .rotated = true},
        RopeCase{.keys = kL3, .values = kL3, .rotary_dims = 64, .rotated = true},
        RopeCase{.keys = kL3, .values = kL3, .head_dim = 64, .rows = 20, .rotated = true},
        RopeCase{.keys = kL3, .values = kL2, .rows = 20, .rotated = true},
        RopeCase{.keys = kL3, .values = kL2, .head_dim = 64, .rotated = true},
        RopeCase{.keys = kI8, .values = kI8, .deviation = 0},
        RopeCase{.keys = kI8, .values = kI8, .heads = 4, .norms = true, .centred = true},
        RopeCase{.keys = kF8,
                 .values = kF8,
                 .head_dim = 64,
                 .heads = 2,
                 .rotary_dims = 24,
                 .centred = true},
        RopeCase{.keys = kI4,
                 .values = kI4,
                 .heads = 6,
                 .rotary_dims = 96,
                 .rotated = true,
                 .centred = true},
        RopeCase{.keys = kL3,
                 .values = kL2,
                 .heads = 2,
                 .rotary_dims = 0,
                 .rotated = true,
                 .centred = true},
        RopeCase{.keys = kL3,
                 .values = kL3,
                 .head_dim = 64,
                 .heads = 2,
                 .rows = 20,
                 .rotated = true,
                 .centred = true}));

// The same, made by the CPU: key rows come rotated.
std::vector<std::byte> EncodeOnCpu(const HeadCase& c) {
  const auto dim = static_cast<int32_t>(c.x.size());
  const auto turned = [&](const std::vector<float>& x) {
    std::vector<float> row = x;
    for (int i = 0; i < dim; ++i) {
      const int half = dim / 2, angle = i % half;
      const float straight = x[i] * c.cosines[angle];
      const float crossed = x[(i + half) % dim] * c.sines[angle];
      row[i] = i < half ? straight - crossed : straight + crossed;
    }
    return row;
  };
  const std::vector<float> row = c.key ? turned(c.x) : c.x;
  std::vector<float> coded = row;
  if (c.key && !c.mean.empty()) {
    const std::vector<float> mean = turned(c.mean);
    for (int i = 0; i < dim; ++i) coded[i] -= mean[i];
  }
  using penstock::KvPlane;
  const KvPlane plane = c.key ? KvPlane::kKeys : KvPlane::kValues;
  const KvLayout layout = HeadLayoutOf(c);
  std::vector<std::byte> page(layout.BlockStride());
  const PagedKv pages{.arena = page.data(), .blocks = 1, .layout = layout};
  cpu::StoreKvRow(pages, {.plane = plane}, coded.data());
  if (c.span > 0) cpu::StoreRecentKvRow(pages, {.plane = plane}, row.data());
  const auto codes = page.begin() + static_cast<ptrdiff_t>(layout.CodesAt(0, plane, 0));
  const auto scales = page.begin() + static_cast<ptrdiff_t>(layout.ScalesAt(0, plane, 0));
  std::vector<std::byte> kept(codes, codes + static_cast<ptrdiff_t>(layout.RowBytes(plane)));
  kept.insert(kept.end(), scales, scales + static_cast<ptrdiff_t>(layout.ScaleBytes()));
  if (c.span == 0) return kept;
  const auto copy =
      page.begin() + static_cast<ptrdiff_t>(layout.BytesBefore(1) + layout.RecentAt(0, plane, 0));
  kept.insert(kept.end(), copy, copy + dim * static_cast<ptrdiff_t>(sizeof(Bf16)));
  return kept;
}

HeadCase RandomHead(KvDtype dtype, int index, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  HeadCase c{.dtype = dtype, .key = index % 2 == 0};
  const int dim = index % 3 == 0 ? 64 : 128;
  const float deviation = std::exp2(normal(random) * 10), mean = normal(random);
  for (int d = 0; d < dim; ++d) c.x.push_back((normal(random) + mean) * deviation);
  for (int d = 0; d < dim / 2; ++d) {
    c.cosines.push_back(normal(random));
    c.sines.push_back(normal(random));
  }
  return c;
}

TEST(RopeAppendCodes, AreTheCpusByteForByte) {
  std::mt19937_64 random(1);
  for (const KvDtype dtype : kKvDtypes) {
    const int heads = HasLevels(dtype) ? 200 : 24;  // levels have a fitted scale
    for (int i = 0; i < heads; ++i) {
      HeadCase c = RandomHead(dtype, i, random);
      if (i == 5) c.x.assign(c.x.size(), 0.0f);
      if (i == 7) c.x.assign(c.x.size(), -3.25f);
      if (dtype != KvDtype::kBf16 && i % 4 > 1) c.span = 64;
      if (c.span > 0 && i % 8 > 3) c.mean = RandomHead(dtype, i, random).x;
      ASSERT_EQ(AppendHead(c), EncodeOnCpu(c)) << KvDtypeName(dtype) << " " << i;
    }
  }
}

TEST(RopeAppendCodes, WhatNoCodeHoldsReadsBackAsNan) {
  std::mt19937_64 random(2);
  for (const KvDtype dtype : kKvDtypes) {
    if (dtype == KvDtype::kBf16) continue;
    for (const float x : {std::numeric_limits<float>::infinity(), std::nanf(""), 0x1p125f}) {
      for (int i = 0; i < 2; ++i) {
        HeadCase c = RandomHead(dtype, i, random);
        c.x[i * 40 + 3] = c.key || x != 0x1p125f ? x : 0x1p113f;  // the least that is too large
        const std::vector<std::byte> kept = AppendHead(c);
        EXPECT_EQ(kept, EncodeOnCpu(c)) << KvDtypeName(dtype) << " " << x;
        EXPECT_EQ(kept.back(), std::byte{0x7f});
      }
    }
  }
}

void ExpectSamePlane(const KvPlane& got, const KvPlane& want) {
  EXPECT_EQ(got.code, want.code);
  EXPECT_EQ(got.offset, want.offset);
  EXPECT_EQ(got.head_stride, want.head_stride);
  EXPECT_EQ(got.row_bytes, want.row_bytes);
  EXPECT_EQ(got.scale_offset, want.scale_offset);
  EXPECT_EQ(got.scale_head_stride, want.scale_head_stride);
}

TEST(Planes, AreWhereThePoolHasThem) {
  const std::map<KvDtype, std::pair<KvCode, KvCode>> codes = {
      {KvDtype::kBf16, {kBf16, kBf16}}, {KvDtype::kF8, {kF8, kF8}},   {KvDtype::kI8, {kI8, kI8}},
      {KvDtype::kI4r, {kI4, kI4}},      {KvDtype::kK8v4, {kI8, kI4}}, {KvDtype::kK3v3, {kL3, kL3}},
      {KvDtype::kK3v2, {kL3, kL2}}};
  EXPECT_EQ(codes.size(), std::size(kKvDtypes));
  // An address alone: nothing is read there.
  auto* const arena = reinterpret_cast<std::byte*>(uintptr_t{1} << 20);
  for (const auto& [dtype, code] : codes) {
    const KvLayout layout{
        .layers = 3, .kv_heads = 2, .head_dim = 64, .block_tokens = 32, .dtype = dtype};
    const KvPlanes planes = PlanesOf({.arena = arena, .layout = layout}, 2);
    const KvPlanes expected = PlanesOfCodes({.keys = code.first,
                                             .values = code.second,
                                             .kv_heads = 2,
                                             .head_dim = 64,
                                             .page = 32,
                                             .layers = 3},
                                            2, arena);
    EXPECT_EQ(planes.layer, expected.layer);
    EXPECT_EQ(planes.block_stride, expected.block_stride);
    EXPECT_EQ(planes.page_log2, 5);
    EXPECT_EQ(planes.rotated_keys, dtype == KvDtype::kI4r || IsLevels(code.first));
    ExpectSamePlane(planes.keys, expected.keys);
    ExpectSamePlane(planes.values, expected.values);
  }
}

}  // namespace
}  // namespace penstock::cuda
