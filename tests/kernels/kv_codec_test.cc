#include "kernels/kv_codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "kernels/cpu/kv_quant.h"
#include "tests/kernels/random_data.h"

namespace penstock {
namespace {

constexpr size_t kSlack = 64;

std::vector<uint8_t> Symbols(RandomData& random, size_t size, int distinct) {
  std::vector<uint8_t> symbols(size);
  for (uint8_t& symbol : symbols) {
    const int a = random.Int(0, distinct - 1), b = random.Int(0, distinct - 1);
    symbol = static_cast<uint8_t>(std::min(a, b));
  }
  return symbols;
}

RansTable TableOf(const std::vector<uint8_t>& symbols) {
  std::array<uint64_t, kRansSymbols> counts{};
  ActiveKvCodecOps().count_symbols(symbols.data(), std::ssize(symbols), counts.data());
  std::array<uint8_t, kRansSymbols> frequencies{};
  NormaliseRansFrequencies(counts, frequencies);
  RansTable table;
  EXPECT_TRUE(MakeRansTable(frequencies, table));
  return table;
}

struct Coded {
  std::vector<uint8_t> words;
  RansStates states;
};

Coded Encode(const std::vector<uint8_t>& symbols, const RansTable& table) {
  std::vector<uint8_t> room(2 * symbols.size() + kSlack);
  Coded coded;
  std::fill(std::begin(coded.states.lane), std::end(coded.states.lane), kRansLow);
  uint8_t* end = room.data() + room.size();
  const uint8_t* begin =
      ActiveKvCodecOps().rans_encode(symbols.data(), std::ssize(symbols), table, coded.states, end);
  coded.words.assign(begin, static_cast<const uint8_t*>(end));
  return coded;
}

class RansTest : public testing::TestWithParam<Isa> {};

TEST_P(RansTest, GivesBackWhatItTookAndEndsWhereItStarted) {
  RandomData random(1);
  for (const size_t size : {size_t{64}, size_t{128}, size_t{4096}, size_t{32768}}) {
    for (const int distinct : {1, 2, 5, 16}) {
      const std::vector<uint8_t> symbols = Symbols(random, size, distinct);
      const RansTable table = TableOf(symbols);
      const Coded portable = [&] {
        const ScopedIsa scope(Isa::kPortable);
        return Encode(symbols, table);
      }();
      const ScopedIsa scope(GetParam());
      Coded coded = Encode(symbols, table);
      EXPECT_EQ(coded.words, portable.words);
      EXPECT_TRUE(std::ranges::equal(coded.states.lane, portable.states.lane));
      std::vector<uint8_t> back(size);
      const uint8_t* end = coded.words.data() + coded.words.size();
      EXPECT_EQ(ActiveKvCodecOps().rans_decode(coded.words.data(), end, std::ssize(back), table,
                                               coded.states, back.data()),
                end);
      EXPECT_EQ(back, symbols);
      for (const uint32_t state : coded.states.lane) EXPECT_EQ(state, kRansLow);
    }
  }
}

TEST_P(RansTest, NeedsTheEntropyAndAHundredthOfABit) {
  RandomData random(2);
  const std::vector<uint8_t> symbols = Symbols(random, 65536, 16);
  std::array<double, kRansSymbols> counts{};
  for (const uint8_t symbol : symbols) ++counts[symbol];
  double entropy = 0;
  for (const double count : counts) entropy -= count / 65536 * std::log2(count / 65536);
  const ScopedIsa scope(GetParam());
  const double bits =
      8.0 * static_cast<double>(Encode(symbols, TableOf(symbols)).words.size()) / 65536;
  EXPECT_LT(bits, entropy + 0.01);
}

TEST_P(RansTest, StopsWhereTheWordsEnd) {
  RandomData random(3);
  const std::vector<uint8_t> symbols = Symbols(random, 4096, 16);
  const RansTable table = TableOf(symbols);
  const ScopedIsa scope(GetParam());
  const Coded coded = Encode(symbols, table);
  std::vector<uint8_t> back(symbols.size());
  for (size_t size = 0; size < coded.words.size(); size += 10) {
    // An allocation of exactly this size, so that sanitizers see reads beyond it.
    const std::vector<uint8_t> part(coded.words.begin(),
                                    coded.words.begin() + static_cast<long>(size));
    RansStates states = coded.states;
    EXPECT_EQ(ActiveKvCodecOps().rans_decode(part.data(), part.data() + size, std::ssize(back),
                                             table, states, back.data()),
              nullptr);
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, RansTest, testing::ValuesIn(SupportedIsas()), TestName);

TEST(RansTableTest, RefusesWhatDoesNotAddUp) {
  RansTable table;
  std::array<uint8_t, kRansSymbols> frequencies;
  frequencies.fill(16);
  EXPECT_TRUE(MakeRansTable(frequencies, table));
  frequencies[3] = 17;
  EXPECT_FALSE(MakeRansTable(frequencies, table));
  frequencies[4] = 15;
  EXPECT_TRUE(MakeRansTable(frequencies, table));
  frequencies[3] = 0;
  frequencies[4] = 32;
  EXPECT_FALSE(MakeRansTable(frequencies, table));
}

TEST(RansTableTest, EveryDistributionAddsUp) {
  RandomData random(4);
  for (int round = 0; round < 2000; ++round) {
    std::array<uint64_t, kRansSymbols> counts{};
    for (uint64_t& count : counts) {
      count = random.Int(0, 1) == 0 ? 0 : uint64_t{1} << random.Int(0, 40);
    }
    std::array<uint8_t, kRansSymbols> frequencies{};
    NormaliseRansFrequencies(counts, frequencies);
    RansTable table;
    ASSERT_TRUE(MakeRansTable(frequencies, table)) << round;
    for (int s = 0; s < kRansSymbols; ++s) {  // The reciprocals divide exactly.
      for (const uint32_t x : {0u, 1u, 0x7fffu, 0x8000u, 0x12345678u, 0x7fffffffu}) {
        const uint32_t f = table.frequency[s];
        const uint32_t quotient =
            f == 1
                ? x
                : static_cast<uint32_t>(uint64_t{x} * table.reciprocal[s] >> 32) >> table.shift[s];
        ASSERT_EQ(quotient, x / f) << f;
      }
    }
  }
}

class QuantTest : public testing::TestWithParam<Isa> {};

TEST_P(QuantTest, IntegersAreOffByHalfAScaleAtMost) {
  const ScopedIsa scope(GetParam());
  const KvQuantOps& ops = ActiveKvQuantOps();
  RandomData random(5);
  for (const int dims : {16, 64, 80, 128, 1024}) {
    constexpr int64_t kRows = 12;
    const std::vector<Bf16> values = random.Bf16s(kRows * dims, 3.0f);
    std::vector<uint8_t> codes(values.size());
    std::vector<KvGroupParams> params(kRows);
    std::vector<Bf16> back(values.size());
    const auto check = [&] {
      for (size_t i = 0; i < values.size(); ++i) {
        const float scale = ToFloat(params[i / static_cast<size_t>(dims)].scale);
        const float x = ToFloat(values[i]);
        ASSERT_LE(std::fabs(x - ToFloat(back[i])), scale * 0.5001f + std::fabs(x) / 256) << dims;
      }
    };
    ops.encode_i8(values.data(), kRows, dims, codes.data(), params.data());
    ops.decode_i8(codes.data(), params.data(), kRows, dims, back.data());
    check();
    ops.encode_i4(values.data(), kRows, dims, false, codes.data(), params.data());
    ops.decode_i4(codes.data(), params.data(), kRows, dims, false, back.data());
    check();
  }
}

// A rotation spreads what one channel has over all: an outlier costs less.
TEST_P(QuantTest, RotationHelpsAgainstOutliers) {
  const ScopedIsa scope(GetParam());
  const KvQuantOps& ops = ActiveKvQuantOps();
  RandomData random(6);
  for (const int dims : {16, 64, 96, 128}) {
    constexpr int64_t kRows = 64;
    std::vector<Bf16> values = random.Bf16s(kRows * dims);
    for (size_t row = 0; row < kRows; ++row)
      values[row * static_cast<size_t>(dims) + 3] = ToBf16(14);
    double errors[2] = {};
    for (const bool rotate : {false, true}) {
      std::vector<uint8_t> codes(values.size() / 2);
      std::vector<KvGroupParams> params(kRows);
      std::vector<Bf16> back(values.size());
      ops.encode_i4(values.data(), kRows, dims, rotate, codes.data(), params.data());
      ops.decode_i4(codes.data(), params.data(), kRows, dims, rotate, back.data());
      for (size_t i = 0; i < values.size(); ++i) {
        const double difference = ToFloat(values[i]) - ToFloat(back[i]);
        errors[rotate] += difference * difference;
      }
    }
    EXPECT_LT(errors[1], 0.8 * errors[0]) << dims;
  }
}

// The definition of OCP 8-bit floats, code by code.
double F8Value(F8Format format, int code) {
  const int mantissa_bits = format == F8Format::kE4m3 ? 3 : 2;
  const int bias = format == F8Format::kE4m3 ? 7 : 15;
  const int exponent = (code & 0x7f) >> mantissa_bits;
  const double mantissa = (code & ((1 << mantissa_bits) - 1)) / std::exp2(mantissa_bits);
  const double magnitude =
      exponent == 0 ? mantissa * std::exp2(1 - bias) : (1 + mantissa) * std::exp2(exponent - bias);
  return code >= 128 ? -magnitude : magnitude;
}

TEST_P(QuantTest, FloatsOfEightBitsAreTheNearest) {
  const ScopedIsa scope(GetParam());
  const KvQuantOps& ops = ActiveKvQuantOps();
  RandomData random(7);
  for (const F8Format format : {F8Format::kE4m3, F8Format::kE5m2}) {
    const int top = format == F8Format::kE4m3 ? 0x7e : 0x7b;
    std::vector<double> values;
    for (int code = 0; code <= top; ++code) values.push_back(F8Value(format, code));
    constexpr int kDims = 64;
    std::vector<Bf16> row = random.Bf16s(kDims * 200);
    for (size_t i = 0; i < row.size(); ++i) {
      if (i % 3 == 0) row[i] = ToBf16(ToFloat(row[i]) * std::exp2(-static_cast<float>(i % 20)));
    }
    std::vector<uint8_t> codes(row.size());
    std::vector<Bf16> scales(200), back(row.size());
    ops.encode_f8(row.data(), 200, kDims, format, codes.data(), scales.data());
    ops.decode_f8(codes.data(), scales.data(), 200, kDims, format, back.data());
    for (size_t i = 0; i < row.size(); ++i) {
      const double scale = ToFloat(scales[i / kDims]), x = ToFloat(row[i]) / scale;
      ASSERT_LE(codes[i] & 0x7f, top);
      double min = 1e9;
      for (const double value : values) min = std::min(min, std::fabs(std::fabs(x) - value));
      ASSERT_NEAR(std::fabs(x - F8Value(format, codes[i])), min, 1e-9) << i << " " << x;
      ASSERT_EQ(ToFloat(back[i]), static_cast<float>(F8Value(format, codes[i]) * scale)) << i;
    }
  }
}

// Scales from another machine need not be what encode_f8 chooses.
TEST_P(QuantTest, FloatsOfEightBitsHaveAnyScale) {
  const ScopedIsa scope(GetParam());
  std::vector<uint8_t> codes(256);
  std::iota(codes.begin(), codes.end(), uint8_t{0});
  std::vector<Bf16> back(codes.size());
  for (const F8Format format : {F8Format::kE4m3, F8Format::kE5m2}) {
    const int top = format == F8Format::kE4m3 ? 0x7e : 0x7b;
    for (uint32_t bits = 0; bits < 0x10000; bits += bits % 128 == 0 ? 1 : 127) {
      const Bf16 scale{static_cast<uint16_t>(bits)};
      if (!std::isfinite(ToFloat(scale))) continue;
      ActiveKvQuantOps().decode_f8(codes.data(), &scale, 1, 256, format, back.data());
      for (int code = 0; code < 256; ++code) {
        const auto value = static_cast<float>(std::fabs(F8Value(format, code)) * ToFloat(scale));
        if ((code & 0x7f) > top || !std::isfinite(value)) continue;
        const uint16_t sign = code < 128 ? 0 : 0x8000;
        ASSERT_EQ(back[static_cast<size_t>(code)].bits, ToBf16(value).bits | sign)
            << code << " " << bits;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, QuantTest, testing::ValuesIn(SupportedIsas()), TestName);

}  // namespace
}  // namespace penstock
