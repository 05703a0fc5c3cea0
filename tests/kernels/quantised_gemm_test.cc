#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/cpu/gemm/integer_ops.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/f16.h"
#include "kernels/gemm.h"
#include "tests/kernels/random_data.h"

namespace penstock {
namespace {

float RoundedTo(ScaleType type, float value) {
  if (type == ScaleType::kBf16) return ToFloat(ToBf16(value));
  return type == ScaleType::kF16 ? HalfToFloat(FloatToHalf(value)) : value;
}

struct Shape {
  int64_t rows, inputs, outputs;
};

// A random quantised matrix and random rows.
struct QuantisedProblem {
  QuantisedProblem(const Shape& s, const QuantisedFormat& f, uint64_t seed, bool ordered = false)
      : shape(s), format(f), matrix(Matrix(s, f, seed, ordered)) {
    RandomData random(seed + 1);
    input = random.Floats(s.rows * s.inputs);
    bias = random.Floats(s.outputs);
    start = random.Floats(s.rows * s.outputs);
  }

  WeightMatrix Matrix(const Shape& s, const QuantisedFormat& f, uint64_t seed, bool ordered) {
    RandomData random(seed);
    const int64_t padded = (s.inputs + f.group - 1) / f.group * f.group;
    groups = padded / f.group;
    if (ordered) {
      order.resize(static_cast<size_t>(padded));
      std::iota(order.begin(), order.end(), 0);
      for (int64_t i = s.inputs - 1; i > 0; --i) std::swap(order[i], order[random.Int(0, i)]);
      for (int64_t i = s.inputs; i < padded; ++i) order[i] = -1;
    }
    QuantisedMatrix result(s.outputs, s.inputs, f, order);
    for (int64_t output = 0; output < s.outputs; ++output) {
      Row row;
      const int extreme = random.Int(0, 9);  // some rows are all at one end, for the largest sums
      for (int64_t i = 0; i < s.inputs; ++i) {
        const int code = random.Int(0, (1 << f.bits) - 1);
        row.codes.push_back(extreme == 0 ? 0 : extreme == 1 ? (1 << f.bits) - 1 : code);
      }
      for (int64_t g = 0; g < groups; ++g) {
        if (f.zeros) row.zeros.push_back(static_cast<uint8_t>(random.Int(0, (1 << f.bits) - 1)));
        if (f.two_level()) continue;
        row.scales.push_back(RoundedTo(f.scale, random.Floats(1, 0.01f)[0]));
        if (f.offsets) row.offsets.push_back(random.Floats(1, 0.1f)[0]);
      }
      if (f.two_level()) {
        SetTwoLevelRow(output, random, row, result);
      } else {
        result.SetRow(
            output,
            {.codes = row.codes, .scales = row.scales, .zeros = row.zeros, .offsets = row.offsets});
      }
      rows.push_back(row);
    }
    return result;
  }

  struct Row {
    std::vector<uint8_t> codes, zeros;
    std::vector<float> scales, offsets;
  };

  // Integers of the whole range and factors of any size; `row` gets the products.
  void SetTwoLevelRow(int64_t output, RandomData& random, Row& row, QuantisedMatrix& target) const {
    const auto draw = [&](float size, std::vector<float>& factors, std::vector<float>& products) {
      std::vector<float> integers;
      for (int64_t g = 0; g < groups; ++g) {
        if (g % format.run() == 0) {
          const bool tiny = random.Int(0, 7) == 0;  // subnormal in f16
          factors.push_back(
              RoundedTo(ScaleType::kF16, random.Floats(1, tiny ? 0x1p-20f : size)[0]));
        }
        const int extreme = random.Int(0, 9);
        const int integer = random.Int(-128, 127);
        integers.push_back(static_cast<float>(extreme == 0 ? -128 : extreme == 1 ? 127 : integer));
        products.push_back(factors.back() * integers.back());
      }
      return integers;
    };
    std::vector<float> scale_factors, offset_factors, offsets;
    const auto scales = draw(1e-4f, scale_factors, row.scales);
    if (format.offsets) offsets = draw(1e-3f, offset_factors, row.offsets);
    target.SetRow(output, {.codes = row.codes,
                           .scales = scales,
                           .zeros = {},
                           .offsets = offsets,
                           .scale_factors = scale_factors,
                           .offset_factors = offset_factors});
  }

  std::vector<float> Run(const Exec& exec, GemmOutput mode, bool with_bias, int64_t first = 0,
                         int64_t count = -1) const {
    if (count < 0) count = shape.rows;
    const int64_t width = mode == GemmOutput::kSiluGate ? shape.outputs / 2 : shape.outputs;
    std::vector<float> output(start.begin() + first * width,
                              start.begin() + (first + count) * width);
    const GemmScratch scratch(count, shape.inputs, ThreadCount(exec));
    GemmArgs args{.input = {input.data() + first * shape.inputs, {count, shape.inputs}},
                  .weight = &matrix,
                  .output = {output.data(), {count, width}},
                  .mode = mode,
                  .scratch = &scratch};
    if (with_bias) args.bias = {bias.data(), {shape.outputs}};
    Gemm(exec, args);
    return output;
  }

  // A row's integers in the order of the codes, and what they are multiplied by.
  struct Activations {
    std::vector<int> integers;
    float factor;
  };
  Activations ActivationsOf(int64_t row) const {
    const float* x = input.data() + row * shape.inputs;
    float max = 0;
    for (int64_t i = 0; i < shape.inputs; ++i) max = std::max(max, std::abs(x[i]));
    const float inverse = static_cast<float>(kActivationMax) / max;
    Activations result{.integers = {}, .factor = max / static_cast<float>(kActivationMax)};
    for (int64_t i = 0; i < shape.inputs; ++i) {
      const int64_t at = order.empty() ? i : order[i];
      result.integers.push_back(static_cast<int>(std::nearbyint(x[at] * inverse)));
    }
    return result;
  }

  // One product by the definition: integers of the row, exact sums of groups, one multiply-add a
  // group and one more with offsets.
  float Oracle(const Activations& x, int64_t output) const {
    const Row& weights = rows[output];
    float sum = 0;
    for (int64_t g = 0; g < groups; ++g) {
      int64_t exact = 0, activations = 0;
      for (int64_t i = g * format.group;
           i < std::min<int64_t>(shape.inputs, (g + 1) * format.group); ++i) {
        activations += x.integers[i];
        exact += int64_t{x.integers[i]} * Integer(weights, g, i);
      }
      EXPECT_LE(std::abs(exact), std::numeric_limits<int32_t>::max());
      sum = std::fma(static_cast<float>(exact), weights.scales[g], sum);
      if (!format.offsets) continue;
      sum = std::fma(static_cast<float>(activations), weights.offsets[g], sum);
    }
    return sum * x.factor;
  }
  float Oracle(int64_t row, int64_t output) const { return Oracle(ActivationsOf(row), output); }

  // A code of a row's group, less the zero point.
  int Integer(const Row& row, int64_t group, int64_t index) const {
    const uint8_t code = row.codes[index];
    const int integer = format.table() == nullptr ? code : format.table()->at(code);
    return integer - (format.zeros ? row.zeros[group] : format.zero());
  }

  Shape shape;
  QuantisedFormat format;
  int64_t groups = 0;
  std::vector<int32_t> order;
  std::vector<Row> rows;
  WeightMatrix matrix;
  std::vector<float> input, bias, start;
};

std::vector<int> Groups(int bits) {
  if (bits == 4 || bits == 8) return {16, 32, 64, 128, 256};
  return {bits == 5 ? 32 : 16, 128};
}

std::vector<QuantisedFormat> Formats() {
  std::vector<QuantisedFormat> formats;
  for (const int bits : {4, 5, 6, 8}) {
    for (const int group : Groups(bits)) {
      for (const bool zeros : {false, true}) {
        const auto scale = static_cast<ScaleType>((group / 32 + (zeros ? 1 : 0)) % 3);
        formats.push_back({.bits = bits, .group = group, .zeros = zeros, .scale = scale});
      }
    }
    formats.push_back({.bits = bits, .group = 32, .scale = ScaleType::kF32, .offsets = true});
    formats.push_back(
        {.bits = bits, .group = Groups(bits).front(), .zeros = true, .offsets = true});
    for (const int group : Groups(bits)) {
      for (const bool offsets : {false, true}) {
        formats.push_back(
            {.bits = bits, .group = group, .scale = ScaleType::kTwoLevel, .offsets = offsets});
      }
    }
  }
  for (const ScaleType scale :
       {ScaleType::kBf16, ScaleType::kF16, ScaleType::kF32, ScaleType::kTwoLevel}) {
    formats.push_back({.bits = 4, .group = 32, .scale = scale});
    formats.push_back({.code = CodeType::kE2m1, .bits = 4, .group = 32, .scale = scale});
    formats.push_back({.code = CodeType::kIq4, .bits = 4, .group = 32, .scale = scale});
  }
  return formats;
}

class QuantisedGemmTest : public testing::TestWithParam<Isa> {
 protected:
  ScopedIsa isa_{GetParam()};
};

TEST_P(QuantisedGemmTest, GivesTheBitsOfTheDefinition) {
  ThreadPool pool(2);
  uint64_t seed = 0;
  for (const QuantisedFormat& format : Formats()) {
    for (const int64_t m : {1, 2, 3, 4, 5, 13, 26}) {
      for (const Shape& shape : {Shape{m, 32, 1}, Shape{m, 256, 200}, Shape{m, 600, 33}}) {
        const QuantisedProblem p(shape, format, ++seed);
        const auto product = p.Run({.threads = &pool}, GemmOutput::kStore, false);
        const auto added = p.Run({.threads = &pool}, GemmOutput::kAdd, true);
        for (int64_t row = 0, i = 0; row < m; ++row) {
          const QuantisedProblem::Activations x = p.ActivationsOf(row);
          for (int64_t output = 0; output < shape.outputs; ++output, ++i) {
            const float want = p.Oracle(x, output);
            ASSERT_EQ(product[i], want)
                << format.Name() << " " << m << " x " << shape.inputs << " element " << i;
            ASSERT_EQ(added[i], want + p.bias[output] + p.start[i]);
          }
        }
      }
    }
  }
}

TEST_P(QuantisedGemmTest, TakesInputsInTheOrderOfTheCodes) {
  for (const int64_t m : {1, 3, 7}) {
    const QuantisedProblem p({m, 1300, 40}, {.bits = 4, .group = 128}, 5, true);
    const auto product = p.Run({}, GemmOutput::kStore, false);
    for (int64_t i = 0; i < m * 40; ++i) ASSERT_EQ(product[i], p.Oracle(i / 40, i % 40));
  }
}

TEST_P(QuantisedGemmTest, ARowIsTheSameInEveryBatchAndWithEveryThreadCount) {
  constexpr int64_t kRows = 40, kOutputs = 300;
  for (const QuantisedFormat& format :
       {QuantisedFormat{.bits = 4, .group = 32}, QuantisedFormat{.bits = 8, .group = 128},
        QuantisedFormat{.bits = 4, .group = 32, .offsets = true},
        QuantisedFormat{.bits = 6, .group = 16, .scale = ScaleType::kTwoLevel},
        QuantisedFormat{.bits = 4, .group = 32, .scale = ScaleType::kTwoLevel, .offsets = true}}) {
    const QuantisedProblem p({kRows, 1056, kOutputs}, format, 11);
    const auto whole = p.Run({}, GemmOutput::kStore, true);
    for (const int threads : {1, 2, 3}) {
      ThreadPool pool(threads);
      for (int64_t m = 1; m <= kRows; ++m) {
        const int64_t first = (m * 13) % (kRows - m + 1);
        const auto part = p.Run({.threads = &pool}, GemmOutput::kStore, true, first, m);
        const std::vector<float> same(whole.begin() + first * kOutputs,
                                      whole.begin() + (first + m) * kOutputs);
        ASSERT_EQ(part, same) << m << " rows from " << first << ", " << threads << " threads";
      }
    }
  }
}

// The formats of Q4_K, Q5_K, Q6_K and IQ4_XS.
std::vector<QuantisedFormat> TwoLevelFormats() {
  constexpr auto kTwoLevel = ScaleType::kTwoLevel;
  return {{.bits = 4, .group = 32, .scale = kTwoLevel, .offsets = true},
          {.bits = 5, .group = 32, .scale = kTwoLevel, .offsets = true},
          {.bits = 6, .group = 16, .scale = kTwoLevel},
          {.code = CodeType::kIq4, .bits = 4, .group = 32, .scale = kTwoLevel}};
}

// The matrix with the products of factors and integers as f32 scales.
QuantisedMatrix WithOneLevel(const QuantisedMatrix& matrix) {
  QuantisedFormat format = matrix.format();
  format.scale = ScaleType::kF32;
  QuantisedMatrix wide(matrix.outputs(), matrix.inputs(), format);
  for (int64_t output = 0; output < matrix.outputs(); ++output) {
    const QuantisedRowCopy row = matrix.CopyRow(output);
    wide.SetRow(output,
                {.codes = row.codes, .scales = row.scales, .zeros = {}, .offsets = row.offsets});
  }
  return wide;
}

// Products of batches of many sizes, with several numbers of threads.
std::vector<std::vector<float>> ManyProducts(const QuantisedProblem& problem) {
  std::vector<std::vector<float>> products;
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    for (const int64_t m : {1, 2, 3, 4, 5, 8, 9, 17, 24, 25, 64}) {
      const int64_t first = (m * 13) % (64 - m + 1);
      products.push_back(problem.Run({.threads = &pool}, GemmOutput::kAdd, true, first, m));
    }
  }
  return products;
}

TEST_P(QuantisedGemmTest, TwoLevelsGiveTheBitsOfTheirProducts) {
  for (const QuantisedFormat& format : TwoLevelFormats()) {
    for (const int64_t inputs : {256, 1024, 1120}) {  // the last run of 1120 has 96
      QuantisedProblem problem({64, inputs, 200}, format, 31);
      const auto two = ManyProducts(problem);
      problem.matrix = WeightMatrix(WithOneLevel(problem.matrix.quantised()[0]));
      ASSERT_EQ(two, ManyProducts(problem)) << format.Name() << ", " << inputs << " inputs";
    }
  }
}

TEST_P(QuantisedGemmTest, ManyRowsInSeveralPasses) {
  const QuantisedProblem p({800, 512, 64}, {.bits = 4, .group = 64, .zeros = true}, 13);
  ThreadPool pool(2);
  const auto whole = p.Run({.threads = &pool}, GemmOutput::kStore, false);
  for (const int64_t row : {0, 383, 384, 799}) {
    const auto one = p.Run({}, GemmOutput::kStore, false, row, 1);
    const std::vector<float> same(whole.begin() + row * 64, whole.begin() + (row + 1) * 64);
    ASSERT_EQ(one, same) << row;
  }
}

TEST_P(QuantisedGemmTest, GatesSixteenBySixteen) {
  const QuantisedProblem p({9, 64, 96}, {.bits = 8, .group = 32}, 5);
  const auto got = p.Run({}, GemmOutput::kSiluGate, true);
  for (int64_t row = 0; row < 9; ++row) {
    for (int64_t c = 0; c < 48; ++c) {
      const int64_t gate_row = c / 16 * 32 + c % 16, up_row = gate_row + 16;
      const double gate = p.Oracle(row, gate_row) + p.bias[gate_row];
      const double up = p.Oracle(row, up_row) + p.bias[up_row];
      const double want = gate / (1 + std::exp(-gate)) * up;
      ASSERT_NEAR(got[row * 48 + c], want, 1e-5 * (1 + std::abs(want))) << row << " " << c;
    }
  }
}

// The products of a row differ from those with the row's exact values by little.
TEST_P(QuantisedGemmTest, SixteenBitsOfActivationsAreNearlyExact) {
  const QuantisedProblem p({6, 2048, 96}, {.bits = 4, .group = 128}, 17);
  const auto product = p.Run({}, GemmOutput::kStore, false);
  double error = 0, scale = 0;
  std::vector<float> weights(2048);
  for (int64_t output = 0; output < 96; ++output) {
    p.matrix.GetRow(output, weights.data());
    for (int64_t row = 0; row < 6; ++row) {
      double want = 0;
      for (int64_t i = 0; i < 2048; ++i) want += double{p.input[row * 2048 + i]} * weights[i];
      error += std::pow(product[row * 96 + output] - want, 2);
      scale += want * want;
    }
  }
  EXPECT_LE(std::sqrt(error / scale), 5e-5);
}

// Sums of 16 bits, which some instruction sets have on the way, must not overflow: integers of
// +-kActivationMax have both bytes at 127 or -127, and +-128 has the low byte -128.
TEST_P(QuantisedGemmTest, ActivationsAtTheirLimits) {
  constexpr float kLowest = 128.0f / kActivationMax;
  const float values[] = {1, -1, kLowest, -kLowest};
  for (const QuantisedFormat& format : Formats()) {
    for (const int64_t m : {1, 2, 3, 4, 32}) {
      QuantisedProblem p({m, 512, 64}, format, 23);
      for (int64_t row = 0; row < m; ++row) {
        std::fill_n(p.input.begin() + row * 512, 512, values[row % 4]);
        p.input[row * 512 + 511] = 1;
      }
      const auto got = p.Run({}, GemmOutput::kStore, false);
      for (int64_t row = 0; row < m; ++row) {
        const QuantisedProblem::Activations x = p.ActivationsOf(row);
        for (int64_t output = 0; output < 64; ++output) {
          ASSERT_EQ(got[row * 64 + output], p.Oracle(x, output))
              << format.Name() << " " << m << " row " << row << " output " << output;
        }
      }
    }
  }
}

TEST_P(QuantisedGemmTest, RowsOfZerosInfinitiesAndTinyNumbers) {
  QuantisedProblem p({6, 64, 32}, {.bits = 8, .group = 64}, 19);
  const auto set = [&](int64_t row, float value) {
    std::fill_n(p.input.begin() + row * 64, 64, value);
  };
  set(0, 0.0f);
  set(1, 1e-36f);  // too small for a scale: zero
  p.input[2 * 64 + 5] = std::numeric_limits<float>::infinity();
  p.input[3 * 64 + 63] = std::numeric_limits<float>::quiet_NaN();
  set(4, 1e-20f);
  set(5, 3e38f);
  for (const int64_t count : {1, 6}) {
    for (int64_t first = 0; first + count <= 6; first += count) {
      const auto got = p.Run({}, GemmOutput::kStore, false, first, count);
      for (int64_t i = 0; i < count * 32; ++i) {
        const int64_t row = first + i / 32;
        if (row < 2) {
          EXPECT_EQ(got[i], 0.0f);
        } else if (row < 4) {
          EXPECT_TRUE(std::isnan(got[i])) << row;
        } else if (row == 4) {
          EXPECT_EQ(got[i], p.Oracle(row, i % 32));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, QuantisedGemmTest, testing::ValuesIn(SupportedIsas()), TestName);

TEST(QuantisedMatrixTest, GivesBackItsRows) {
  for (const QuantisedFormat& format : Formats()) {
    const QuantisedProblem p({1, 300, 37}, format, 3, format.group == 64);
    std::vector<float> row(300);
    for (int64_t output = 0; output < 37; ++output) {
      p.matrix.GetRow(output, row.data());
      for (int64_t i = 0; i < 300; ++i) {
        const auto& weights = p.rows[output];
        const int64_t g = i / format.group;
        const float want = std::fma(weights.scales[g], static_cast<float>(p.Integer(weights, g, i)),
                                    format.offsets ? weights.offsets[g] : 0.0f);
        ASSERT_EQ(row[p.order.empty() ? i : p.order[i]], want) << format.Name();
      }
    }
  }
}

// A 4-bit matrix takes a quarter of the memory of bf16, plus scales.
TEST(QuantisedMatrixTest, TakesTheBytesOfItsFormat) {
  const QuantisedMatrix matrix(4096, 4096, {.bits = 4, .group = 128});
  const double per_weight = static_cast<double>(matrix.bytes()) / (4096.0 * 4096.0);
  EXPECT_NEAR(per_weight, 0.5 + 2.0 / 128, 0.01);
}

// At most a tenth more than GGUF files have.
TEST(QuantisedMatrixTest, TwoLevelsTakeFewBits) {
  const double want[] = {4.625, 5.625, 6.5625, 4.3125};
  for (size_t i = 0; i < std::size(want); ++i) {
    const QuantisedMatrix matrix(4096, 4096, TwoLevelFormats()[i]);
    EXPECT_NEAR(8 * static_cast<double>(matrix.bytes()) / (4096.0 * 4096.0), want[i], 0.02);
  }
}

// The numbers of E2M1 are fractions, and each is twice as much as an integer of the table.
TEST(QuantisedMatrixTest, TablesHaveTheNumbersOfTheirTypes) {
  const std::vector<float> numbers = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (size_t i = 0; i < numbers.size(); ++i) {
    EXPECT_EQ(TableOf(CodeType::kE2m1)->at(i) - 128, 2 * numbers[i]);
    EXPECT_EQ(TableOf(CodeType::kE2m1)->at(8 + i) - 128, -2 * numbers[i]);
  }
  EXPECT_EQ(TableOf(CodeType::kIq4)->front() - 128, -127);
  EXPECT_EQ(TableOf(CodeType::kIq4)->back() - 128, 113);
  EXPECT_EQ(TableOf(CodeType::kInteger), nullptr);
  EXPECT_EQ(TableOf(CodeType::kE4m3), nullptr);
}

TEST(HalfTest, RoundsToTheNearestAndBack) {
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    ASSERT_EQ(FloatToHalf(HalfToFloat(half)), half);
    ASSERT_EQ(FloatToHalf(-HalfToFloat(half)), half | 0x8000);
    if (bits == 0x7bff) continue;
    const float low = HalfToFloat(half), high = HalfToFloat(static_cast<uint16_t>(bits + 1));
    const float middle = (low + high) / 2;
    ASSERT_EQ(FloatToHalf(middle), bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, low)), bits);
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, high)), bits + 1);
  }
  EXPECT_EQ(FloatToHalf(65519.99f), 0x7bff);
  EXPECT_EQ(FloatToHalf(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToHalf(1e38f), 0x7c00);
}

}  // namespace
}  // namespace penstock
