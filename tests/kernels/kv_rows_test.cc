#include "kernels/kv_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "kernels/buffer.h"
#include "tests/kernels/kv_row_oracle.h"
#include "tests/kernels/random_data.h"

namespace penstock {
namespace {

constexpr KvPlane kPlanes[] = {KvPlane::kKeys, KvPlane::kValues};

struct Page {
  explicit Page(const KvLayout& layout) : memory(2 * layout.BlockStride()) {
    std::fill_n(memory.as<uint8_t>(), memory.bytes(), uint8_t{0xa5});
    kv = {.arena = memory.as<std::byte>(), .blocks = 2, .layout = layout};
  }
  std::vector<uint8_t> Bytes() const {
    return {memory.as<uint8_t>(), memory.as<uint8_t>() + memory.bytes()};
  }
  Buffer memory;
  PagedKv kv;
};

KvLayout Layout(KvDtype dtype, int32_t block_tokens, int32_t head_dim) {
  return {.layers = 2,
          .kv_heads = 3,
          .head_dim = head_dim,
          .block_tokens = block_tokens,
          .dtype = dtype};
}

// The other tests take their rotation from here, so it is compared with the matrix itself.
TEST(KvRowOracleTest, RotatesByBlocksOfAHadamardMatrix) {
  for (const int dims : {48, 64, 128, 192, 256}) {
    for (int i = 0; i < dims; ++i) {
      std::vector<double> unit(static_cast<size_t>(dims), 0.0);
      unit[static_cast<size_t>(i)] = 1;
      const std::vector<double> row = Rotated(unit);
      for (int j = 0; j < dims; ++j) {
        ASSERT_DOUBLE_EQ(row[static_cast<size_t>(j)], RotationAt(dims, i, j)) << dims << " " << i;
      }
    }
  }
}

TEST(KvLayoutTest, RowsAndScalesFillALayerWithoutAGap) {
  for (const KvDtype dtype : kKvDtypes) {
    for (const int32_t block_tokens : {16, 32, 64}) {
      const KvLayout layout = Layout(dtype, block_tokens, 48);
      std::vector<int> owners(layout.LayerBytes(), 0);
      for (int32_t head = 0; head < layout.kv_heads; ++head) {
        for (const KvPlane plane : kPlanes) {
          for (int64_t slot = 0; slot < block_tokens; ++slot) {
            for (size_t i = 0; i < layout.RowBytes(plane); ++i) {
              ++owners.at(layout.CodesAt(head, plane, slot) + i);
            }
            for (size_t i = 0; i < layout.ScaleBytes(); ++i) {
              ++owners.at(layout.ScalesAt(head, plane, slot) + i);
            }
          }
        }
      }
      EXPECT_EQ(std::count(owners.begin(), owners.end(), 1), std::ssize(owners))
          << KvDtypeName(dtype) << " " << block_tokens;
      EXPECT_EQ(layout.BlockStride() % 4096, 0u);
    }
  }
}

TEST(KvLayoutTest, BitsOfAnElement) {
  const auto bits = [](KvDtype dtype) {
    const KvLayout layout = Layout(dtype, 16, 128);
    return 8.0 * static_cast<double>(layout.LayerBytes()) / (3 * 2 * 16 * 128);
  };
  EXPECT_EQ(bits(KvDtype::kBf16), 16);
  EXPECT_EQ(bits(KvDtype::kF8), 8.125);
  EXPECT_EQ(bits(KvDtype::kI8), 8.25);
  EXPECT_EQ(bits(KvDtype::kK8v4), 6.25);
  EXPECT_EQ(bits(KvDtype::kI4r), 4.25);
  EXPECT_EQ(bits(KvDtype::kK3v3), 3.125);
  EXPECT_EQ(bits(KvDtype::kK3v2), 2.625);
}

TEST(KvLayoutTest, FingerprintsTellFormatsApart) {
  std::set<uint64_t> seen;
  for (const KvDtype dtype : kKvDtypes) seen.insert(Layout(dtype, 16, 64).Fingerprint());
  EXPECT_EQ(seen.size(), std::size(kKvDtypes));
}

TEST(KvLayoutTest, NamesOfFormats) {
  for (const KvDtype dtype : kKvDtypes) EXPECT_EQ(KvDtypeOf(KvDtypeName(dtype)), dtype);
  EXPECT_EQ(KvDtypeOf("int8"), std::nullopt);
  for (const char* name : {"bf16", "i8", "k3v3+64", "i4r+4096", "k3v3c+128", "i8c+64"}) {
    ASSERT_TRUE(KvPageFormatOf(name)) << name;
    EXPECT_EQ(KvPageFormatName(*KvPageFormatOf(name)), name);
  }
  for (const char* name :
       {"", "k3", "+64", "i8+", "i8+0", "i8+-64", "i8+100", "i8+4160", "i8+64k", "i8+064x",
        "bf16+128", "i8+99999999999", "k3v3c", "bf16c+128", "c+64", "i8cc+64"}) {
    EXPECT_EQ(KvPageFormatOf(name), std::nullopt) << name;
  }
}

// A layer of the model is a pair of layers of different sizes.
TEST(KvLayoutTest, SpansHaveSecondCopies) {
  const KvLayout plain = Layout(KvDtype::kBf16, 16, 64);
  for (const KvDtype dtype : {KvDtype::kF8, KvDtype::kI4r, KvDtype::kK3v2}) {
    const KvLayout layout = plain.In({.dtype = dtype, .span = 128});
    EXPECT_EQ(layout.layers, 2 * plain.layers);
    EXPECT_EQ(layout.FirstCopies(), plain.In({.dtype = dtype}));
    EXPECT_EQ(layout.RecentBytes(), plain.LayerBytes());
    EXPECT_EQ(layout.FullStride(), layout.FirstCopies().BlockStride());
    EXPECT_EQ(layout.PayloadBytes(), plain.PayloadBytes() + layout.FirstCopies().PayloadBytes());
    EXPECT_NE(layout.Fingerprint(), layout.FirstCopies().Fingerprint());
    EXPECT_NE(layout.Fingerprint(), plain.In({.dtype = dtype, .span = 64}).Fingerprint());
    const KvPageFormat centred{.dtype = dtype, .span = 128, .centred = true};
    EXPECT_NE(layout.Fingerprint(), plain.In(centred).Fingerprint());
    EXPECT_EQ(plain.In(centred).format(), centred);
    EXPECT_EQ(plain.In(centred).FirstCopies(), layout.FirstCopies());
    size_t offset = 0;
    for (int32_t layer = 0; layer < layout.layers; ++layer) {
      EXPECT_EQ(layout.group.Has(layer), layer % 2 == 1);
      EXPECT_EQ(layout.BytesBefore(layer), offset);
      EXPECT_EQ(layout.BytesOf(layer), layer % 2 == 0 ? layout.LayerBytes() : plain.LayerBytes());
      EXPECT_EQ(layout.LayerAt(offset), layer);
      offset += layout.BytesOf(layer);
      EXPECT_EQ(layout.LayerAt(offset - 1), layer);
    }
    EXPECT_EQ(layout.LayerAt(offset), layout.layers);
  }
}

// A sequence at the beginning of a span needs no rows.
TEST(KvLayoutTest, RowsAreThoseOfASpan) {
  const KvLayout layout = Layout(KvDtype::kBf16, 16, 64).In({.dtype = KvDtype::kI8, .span = 128});
  EXPECT_EQ(layout.FirstGroupBlock(127), 0);
  EXPECT_EQ(layout.FirstGroupBlock(128), 8);
  EXPECT_EQ(layout.FirstGroupBlock(300), 16);
  for (const int64_t step : {1, 16, 50, 500}) {
    for (int64_t position = 0; position + step <= 1000; ++position) {
      EXPECT_LE(layout.BlocksFor(position + step) - layout.FirstGroupBlock(position),
                layout.RowsAtOnce(1000, step));
    }
  }
}

class KvRowsTest : public testing::TestWithParam<Isa> {
 protected:
  ScopedIsa isa_{GetParam()};
};

// How far a value may lie from what is stored for it, beside the last rounding to bf16.
double Step(KvDtype dtype, KvPlane plane, const std::vector<double>& row, double value) {
  const auto [low, high] = std::minmax_element(row.begin(), row.end());
  const double top = std::max(std::abs(*low), std::abs(*high));
  if (dtype == KvDtype::kBf16) return 0;
  // Scales are rounded up, minima down, by a bf16's last bit each.
  const double range = (*high - *low) * 1.02 + std::abs(*low) / 128;
  if (dtype == KvDtype::kF8) return std::abs(value) / 16 + top / (1 << 14);
  const bool four = dtype == KvDtype::kI4r || (dtype == KvDtype::kK8v4 && plane == kPlanes[1]);
  return range / (four ? 15 : 255) / 2;
}

TEST_P(KvRowsTest, HoldWhatIsStoredAndTouchNothingElse) {
  RandomData random(1);
  for (const KvDtype dtype : kKvDtypes) {
    for (const int32_t block_tokens : {16, 32, 64}) {
      for (const int32_t head_dim : {16, 64, 96, 128, 144}) {
        const KvLayout layout = Layout(dtype, block_tokens, head_dim);
        const Page page(layout);
        for (const KvPlane plane : kPlanes) {
          const KvRowsAt at{.block = 1,
                            .layer = 1,
                            .kv_head = random.Int(0, 2),
                            .plane = plane,
                            .slot = random.Int(0, block_tokens - 1)};
          auto values = random.Floats(head_dim, 3.0f);
          values[random.Int(0, head_dim - 1)] *= 20;  // an outlier
          const auto before = page.Bytes();
          cpu::StoreKvRow(page.kv, at, values.data());
          const auto after = page.Bytes();
          const size_t layer = layout.BlockStride() + layout.LayerBytes();
          const size_t codes = layer + layout.CodesAt(at.kv_head, plane, at.slot);
          const size_t scales = layer + layout.ScalesAt(at.kv_head, plane, at.slot);
          for (size_t i = 0; i < after.size(); ++i) {
            if (i - codes < layout.RowBytes(plane) || i - scales < layout.ScaleBytes()) continue;
            ASSERT_EQ(after[i], before[i]) << KvDtypeName(dtype) << " byte " << i;
          }
          std::vector<double> row;
          for (const float value : values) row.push_back(ToFloat(ToBf16(value)));
          if (layout.IsRotated(plane)) row = Rotated(row);
          const auto held = HeldRow(page.kv, at);
          std::vector<Bf16> loaded(static_cast<size_t>(head_dim));
          cpu::LoadKvRows(page.kv, at, 1, loaded.data());
          for (int d = 0; d < head_dim; ++d) {
            ASSERT_EQ(double{ToFloat(loaded[d])}, held[d]) << KvDtypeName(dtype) << " " << d;
            const double step = HasLevels(dtype) ? DistanceToLevels(page.kv, at, row[d])
                                                 : Step(dtype, plane, row, row[d]);
            ASSERT_NEAR(held[d], row[d], step + std::abs(row[d]) / 256 + std::abs(held[d]) / 256)
                << KvDtypeName(dtype) << " dims " << head_dim << " element " << d;
          }
        }
      }
    }
  }
}

TEST_P(KvRowsTest, SecondCopiesAreRotatedAsTheFirst) {
  RandomData random(4);
  for (const KvDtype dtype : kKvDtypes) {
    if (dtype == KvDtype::kBf16) continue;
    const KvLayout layout = Layout(KvDtype::kBf16, 16, 96).In({.dtype = dtype, .span = 64});
    const Page page(layout);
    for (const KvPlane plane : kPlanes) {
      const KvRowsAt at{.block = 1, .layer = 2, .kv_head = 1, .plane = plane, .slot = 9};
      const auto values = random.Floats(96, 3.0f);
      const auto before = page.Bytes();
      cpu::StoreRecentKvRow(page.kv, at, values.data());
      const auto after = page.Bytes();
      const size_t row =
          layout.BlockStride() + layout.BytesBefore(3) + layout.RecentAt(1, plane, 9);
      for (size_t i = 0; i < after.size(); ++i) {
        if (i - row < 96 * 2) continue;
        ASSERT_EQ(after[i], before[i]) << KvDtypeName(dtype) << " byte " << i;
      }
      std::vector<double> want(values.begin(), values.end());
      if (layout.IsRotated(plane)) want = Rotated(want);
      const std::vector<double> held = HeldRecentRow(page.kv, at);
      for (size_t d = 0; d < 96; ++d) {
        ASSERT_NEAR(held[d], want[d], std::abs(want[d]) / 256 + 1e-5) << KvDtypeName(dtype);
      }
    }
  }
}

// The errors of Max's table 1, 0.343 and 0.186 of the norm, for rows that are long enough.
TEST_P(KvRowsTest, LevelsFitRowsAsTheyFitANormalDistribution) {
  RandomData random(3);
  const KvLayout layout = Layout(KvDtype::kK3v2, 16, 128);
  const Page page(layout);
  for (const auto& [plane, error] : {std::pair{KvPlane::kKeys, 0.186}, {KvPlane::kValues, 0.343}}) {
    double differences = 0, squares = 0;
    for (int row = 0; row < 200; ++row) {
      auto values = random.Floats(128, 0.1f);
      values[random.Int(0, 127)] *= 8;  // an outlier, which the rotation spreads
      const KvRowsAt at{.plane = plane, .slot = row % 16};
      cpu::StoreKvRow(page.kv, at, values.data());
      std::vector<Bf16> loaded(128);
      cpu::LoadKvRows(page.kv, at, 1, loaded.data());
      const auto want = Rotated({values.begin(), values.end()});
      for (size_t d = 0; d < 128; ++d) {
        differences += std::pow(ToFloat(loaded[d]) - want[d], 2);
        squares += want[d] * want[d];
      }
    }
    EXPECT_NEAR(std::sqrt(differences / squares), error, 0.025);
  }
}

TEST_P(KvRowsTest, SameBytesAsThePortableOnes) {
  for (const KvDtype dtype : kKvDtypes) {
    const KvLayout layout = Layout(dtype, 16, 80);
    const Page here(layout), portable(layout);
    RandomData random(2);
    for (int64_t slot = 0; slot < 16; ++slot) {
      for (const KvPlane plane : kPlanes) {
        const auto values = random.Floats(80, std::exp2f(static_cast<float>(random.Int(-60, 60))));
        const KvRowsAt at{.kv_head = 2, .plane = plane, .slot = slot};
        cpu::StoreKvRow(here.kv, at, values.data());
        const ScopedIsa plain(Isa::kPortable);
        cpu::StoreKvRow(portable.kv, at, values.data());
      }
    }
    EXPECT_EQ(here.Bytes(), portable.Bytes()) << KvDtypeName(dtype);
  }
}

TEST_P(KvRowsTest, WhatCannotBeQuantisedReadsAsNan) {
  for (const KvDtype dtype : kKvDtypes) {
    if (dtype == KvDtype::kBf16) continue;  // which holds them as they are
    const Page page(Layout(dtype, 16, 32));
    for (const float bad : {std::numeric_limits<float>::infinity(), -3e38f,
                            std::numeric_limits<float>::quiet_NaN()}) {
      for (const KvPlane plane : kPlanes) {
        std::vector<float> values(32, 1.0f);
        values[7] = bad;
        cpu::StoreKvRow(page.kv, {.plane = plane, .slot = 3}, values.data());
        std::vector<Bf16> loaded(32);
        cpu::LoadKvRows(page.kv, {.plane = plane, .slot = 3}, 1, loaded.data());
        for (const Bf16 value : loaded) {
          ASSERT_TRUE(std::isnan(ToFloat(value))) << KvDtypeName(dtype) << " " << bad;
        }
      }
    }
  }
}

TEST_P(KvRowsTest, RotationIsItsOwnInverse) {
  RandomData random(3);
  for (const int dims : {16, 32, 48, 64, 128, 256}) {
    const auto rows = random.Floats(3 * dims);
    auto turned = rows;
    cpu::RotateRows(turned.data(), 3, dims);
    for (int r = 0; r < 3; ++r) {
      const auto want = Rotated({rows.begin() + r * dims, rows.begin() + (r + 1) * dims});
      for (int d = 0; d < dims; ++d) ASSERT_NEAR(turned[r * dims + d], want[d], 1e-5) << dims;
    }
    cpu::RotateRows(turned.data(), 3, dims);
    for (size_t i = 0; i < rows.size(); ++i) ASSERT_NEAR(turned[i], rows[i], 1e-5) << dims;
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, KvRowsTest, testing::ValuesIn(SupportedIsas()), TestName);

}  // namespace
}  // namespace penstock
