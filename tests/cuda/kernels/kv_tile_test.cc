// The conversion of integer codes to bf16, each of them.

#include "kernels/cuda/device/attention/kv_tile.cuh"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/e4m3.h"

namespace penstock::cuda {
namespace {

struct Range {
  float scale, minimum;  // in bf16

  uint32_t bits() const {
    return ToBf16(scale).bits | static_cast<uint32_t>(ToBf16(minimum).bits) << 16;
  }
  static constexpr float kMost = std::numeric_limits<float>::infinity();

  // The sum is exact in double precision: scales and minima here are less than 2^29 apart. A float
  // beside it, on its side of the nearest float, is rounded to bf16 as the sum would be.
  float ValueOf(int code) const {
    const double exact = double{scale} * code + double{minimum};
    auto near = static_cast<float>(exact);
    if (double{near} != exact) near = std::nextafter(near, exact > near ? kMost : -kMost);
    return ToFloat(ToBf16(near));
  }
};

const std::vector<Range> kRanges = {{.scale = 1, .minimum = 0},
                                    {.scale = 0.01171875f, .minimum = -1.4921875f},
                                    {.scale = 0x1.fep-9f, .minimum = 0x1.02p+3f},
                                    {.scale = 0x1.8p+105f, .minimum = -0x1p+112f},
                                    {.scale = 0x1p-130f, .minimum = 0x1p-131f}};

// `codes` of 16 numbers, which stand in a row at the places that Dequantise16 says.
template <KvCode kCode>
std::vector<float> Converted(const std::vector<uint8_t>& codes, const Range& range) {
  alignas(16) uint8_t row[16] = {};
  alignas(4) uint8_t scale_of_row[4];
  const uint32_t bits = range.bits();
  std::memcpy(scale_of_row, &bits, sizeof(bits));
  for (size_t i = 0; i < 16; ++i) {
    if (kCode == KvCode::kI4) {
      row[i % 8] |= static_cast<uint8_t>(codes[i] << (i < 8 ? 0 : 4));
    } else {
      row[i] = codes[i];
    }
  }
  Words4 words[2];
  Dequantise16<kCode>(row, scale_of_row, words);
  std::vector<float> values;
  for (int i = 0; i < 16; ++i) {
    const uint32_t pair = words[i / 8].word[i % 8 / 2];
    values.push_back(i % 2 == 0 ? LowBf16(pair) : HighBf16(pair));
  }
  return values;
}

template <KvCode kCode>
void ExpectEveryCode(int count) {
  for (const Range& range : kRanges) {
    for (int first = 0; first < count; first += 16) {
      std::vector<uint8_t> codes;
      for (int i = 0; i < 16; ++i) codes.push_back(static_cast<uint8_t>(first + (i * 7) % 16));
      const std::vector<float> values = Converted<kCode>(codes, range);
      for (size_t i = 0; i < 16; ++i) {
        EXPECT_EQ(values[i], range.ValueOf(codes[i])) << range.scale << " " << int{codes[i]};
      }
    }
  }
}

TEST(KvTileTest, ConvertsEveryByteRoundedOnce) { ExpectEveryCode<KvCode::kI8>(256); }
TEST(KvTileTest, ConvertsEveryNibbleRoundedOnce) { ExpectEveryCode<KvCode::kI4>(16); }

TEST(KvTileTest, ConvertsEveryE4m3) {
  for (const float scale : {1.0f, 0x1p-20f, 0x1p100f}) {
    for (int first = 0; first < 256; first += 16) {
      std::vector<uint8_t> codes;
      for (int i = 0; i < 16; ++i) codes.push_back(static_cast<uint8_t>(first + (i * 7) % 16));
      const std::vector<float> values =
          Converted<KvCode::kF8>(codes, {.scale = scale, .minimum = 0});
      for (size_t i = 0; i < 16; ++i) {
        if ((codes[i] & 0x7f) == 0x7f) continue;  // no number
        EXPECT_EQ(values[i], scale * E4m3ToFloat(codes[i])) << scale << " " << int{codes[i]};
      }
    }
  }
}

TEST(KvTileTest, ARowWithoutAScaleIsNoNumber) {
  const Range broken{.scale = std::numeric_limits<float>::quiet_NaN(), .minimum = 0};
  for (const float value : Converted<KvCode::kI8>(std::vector<uint8_t>(16, 0), broken)) {
    EXPECT_TRUE(std::isnan(value));
  }
}

}  // namespace
}  // namespace penstock::cuda
