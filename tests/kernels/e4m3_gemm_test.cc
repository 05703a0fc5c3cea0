#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/e4m3.h"
#include "kernels/gemm.h"
#include "tests/kernels/random_data.h"

namespace penstock {
namespace {

QuantisedFormat Format(int group) {
  return {.code = CodeType::kE4m3, .group = group, .scale = ScaleType::kF32};
}

// All codes but the two NaNs, in turn.
uint8_t CodeAt(int64_t i) {
  const auto code = static_cast<uint8_t>(i % 254);
  return static_cast<uint8_t>(code < 127 ? code : code + 1);
}

// Products of E4M3 weights with random rows.
class E4m3GemmTest : public testing::TestWithParam<Isa> {
 protected:
  void Make(int64_t outputs, int64_t inputs, int group) {
    outputs_ = outputs;
    inputs_ = inputs;
    RandomData random(7);
    QuantisedMatrix matrix(outputs, inputs, Format(group));
    std::vector<uint8_t> codes(static_cast<size_t>(inputs));
    for (int64_t output = 0; output < outputs; ++output) {
      for (auto& code : codes) code = CodeAt(random.Int(0, 253));
      matrix.SetRow(output, {.codes = codes,
                             .scales = random.Floats(matrix.groups(), 0.01f),
                             .zeros = {},
                             .offsets = {}});
    }
    matrix_ = WeightMatrix(std::move(matrix));
  }

  std::vector<float> Product(const std::vector<float>& input, int threads = 1) const {
    ThreadPool pool(threads);
    const auto rows = static_cast<int64_t>(input.size()) / inputs_;
    std::vector<float> output(static_cast<size_t>(rows * outputs_));
    const GemmScratch scratch(rows, inputs_, threads);
    Gemm({.threads = &pool}, {.input = {input.data(), {rows, inputs_}},
                              .weight = &matrix_,
                              .output = {output.data(), {rows, outputs_}},
                              .scratch = &scratch});
    return output;
  }

  ScopedIsa isa_{GetParam()};
  int64_t outputs_ = 0;
  int64_t inputs_ = 0;
  WeightMatrix matrix_;
};

// A row with a single 1 gives the weights of that input, so that all codes are seen at all places.
TEST_P(E4m3GemmTest, EveryCodeGivesItsNumber) {
  Make(67, 300, 128);
  std::vector<float> weights(300);
  std::vector<std::vector<float>> rows;
  for (int64_t output = 0; output < 67; ++output) {
    matrix_.GetRow(output, weights.data());
    rows.push_back(weights);
  }
  for (int64_t input = 0; input < 300; ++input) {
    std::vector<float> one(300);
    one[static_cast<size_t>(input)] = 1;
    const auto product = Product(one);
    for (size_t output = 0; output < 67; ++output) {
      ASSERT_EQ(product[output], rows[output][static_cast<size_t>(input)]) << input;
    }
  }
}

TEST_P(E4m3GemmTest, IsNearTheSumInDoublePrecision) {
  for (const int group : {32, 128, 256}) {
    for (const int64_t m : {1, 2, 3, 5, 26}) {
      Make(100, 602, group);
      RandomData random(static_cast<uint64_t>(m));
      std::vector<float> input = random.Floats(m * 602);
      for (float& x : input) x = ToFloat(ToBf16(x));  // which no instruction set rounds again
      const auto product = Product(input, 2);
      std::vector<float> weights(602);
      for (int64_t output = 0; output < 100; ++output) {
        matrix_.GetRow(output, weights.data());
        for (int64_t row = 0; row < m; ++row) {
          double want = 0, size = 0;
          for (int64_t i = 0; i < 602; ++i) {
            const double term = double{input[row * 602 + i]} * weights[i];
            want += term;
            size += std::abs(term);
          }
          ASSERT_NEAR(product[row * 100 + output], want, 1e-6 * size) << group << " " << m;
        }
      }
    }
  }
}

TEST_P(E4m3GemmTest, ARowIsTheSameInEveryBatchAndWithEveryThreadCount) {
  constexpr int64_t kRows = 30, kInputs = 1056, kOutputs = 300;
  Make(kOutputs, kInputs, 128);
  const std::vector<float> input = RandomData(3).Floats(kRows * kInputs);
  const auto whole = Product(input);
  for (const int threads : {1, 3}) {
    for (int64_t m = 1; m <= kRows; ++m) {
      const int64_t first = (m * 13) % (kRows - m + 1);
      const auto part = Product(
          {input.begin() + first * kInputs, input.begin() + (first + m) * kInputs}, threads);
      const std::vector<float> same(whole.begin() + first * kOutputs,
                                    whole.begin() + (first + m) * kOutputs);
      ASSERT_EQ(part, same) << m << " rows from " << first << ", " << threads << " threads";
    }
  }
}

TEST_P(E4m3GemmTest, ManyRowsInSeveralPasses) {
  Make(64, 512, 64);
  const std::vector<float> input = RandomData(13).Floats(int64_t{800} * 512);
  const auto whole = Product(input, 2);
  for (const int64_t row : {0, 383, 384, 799}) {
    const auto one = Product({input.begin() + row * 512, input.begin() + (row + 1) * 512});
    const std::vector<float> same(whole.begin() + row * 64, whole.begin() + (row + 1) * 64);
    ASSERT_EQ(one, same) << row;
  }
}

TEST_P(E4m3GemmTest, ARowWithInfinityOrNanGivesNan) {
  Make(32, 64, 32);
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> input(64, 1.0f);
    input[40] = bad;
    for (const float y : Product(input)) EXPECT_FALSE(std::isfinite(y));
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, E4m3GemmTest, testing::ValuesIn(SupportedIsas()), TestName);

TEST(E4m3Test, NumbersOfTheSpecification) {
  EXPECT_EQ(E4m3ToFloat(0x01), 0x1p-9f);
  EXPECT_EQ(E4m3ToFloat(0x08), 0x1p-6f);
  EXPECT_EQ(E4m3ToFloat(0x38), 1.0f);
  EXPECT_EQ(E4m3ToFloat(0x3c), 1.5f);
  EXPECT_EQ(E4m3ToFloat(0x7e), kE4m3Max);
  EXPECT_EQ(E4m3ToFloat(0xfe), -kE4m3Max);
  EXPECT_TRUE(std::isnan(E4m3ToFloat(0x7f)) && std::isnan(E4m3ToFloat(0xff)));
}

TEST(E4m3Test, RoundsToTheNearestAndBack) {
  for (uint8_t code = 0; code < 0x7f; ++code) {
    const float number = E4m3ToFloat(code);
    ASSERT_EQ(FloatToE4m3(number), code);
    ASSERT_EQ(FloatToE4m3(-number), code | 0x80);
    if (code == 0x7e) continue;
    const float next = E4m3ToFloat(static_cast<uint8_t>(code + 1)), middle = (number + next) / 2;
    ASSERT_GT(next, number);
    ASSERT_EQ(FloatToE4m3(middle), code % 2 == 0 ? code : code + 1);
    ASSERT_EQ(FloatToE4m3(std::nextafter(middle, number)), code);
    ASSERT_EQ(FloatToE4m3(std::nextafter(middle, next)), code + 1);
  }
}

}  // namespace
}  // namespace penstock
