#include "kernels/gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/thread_pool.h"
#include "tests/kernels/random_data.h"

namespace penstock {
namespace {

constexpr float kLimit = 3;  // of GemmOutput::kClampedGate

struct Problem {
  Problem(int64_t m, int64_t k, int64_t n, uint64_t seed) : rows(m), inputs(k), outputs(n) {
    RandomData random(seed);
    input = random.Floats(m * k);
    weight = random.Bf16s(n * k);
    bias = random.Floats(n);
    start = random.Floats(m * n);
    PackedMatrix matrix(n, k);
    for (int64_t i = 0; i < n; ++i) matrix.SetRow(i, weight.data() + i * k);
    packed = std::move(matrix);
  }

  std::vector<float> Run(const Exec& exec, GemmOutput mode, bool with_bias, int64_t first = 0,
                         int64_t count = -1) const {
    if (count < 0) count = rows;
    const int64_t width = IsGate(mode) ? outputs / 2 : outputs;
    std::vector<float> output(start.begin() + first * width,
                              start.begin() + (first + count) * width);
    const GemmScratch scratch(count, inputs, ThreadCount(exec));
    GemmArgs args{.input = {input.data() + first * inputs, {count, inputs}},
                  .weight = &packed,
                  .output = {output.data(), {count, width}},
                  .mode = mode,
                  .limit = kLimit,
                  .scratch = &scratch};
    if (with_bias) args.bias = {bias.data(), {outputs}};
    Gemm(exec, args);
    return output;
  }

  int64_t rows, inputs, outputs;
  WeightMatrix packed;
  std::vector<float> input, bias, start;
  std::vector<Bf16> weight;
};

class GemmTest : public testing::TestWithParam<Isa> {
 protected:
  // The product in double, and in `magnitude` the sum of the absolute values of its terms.
  static double Oracle(const Problem& p, int64_t row, int64_t output, double* magnitude) {
    double sum = 0;
    *magnitude = 0;
    const float* const input = p.input.data() + row * p.inputs;
    const Bf16* const weight = p.weight.data() + output * p.inputs;
    for (int64_t i = 0; i < p.inputs; ++i) {
      const double term = Activation(GetParam(), input[i]) * ToFloat(weight[i]);
      sum += term;
      *magnitude += std::abs(term);
    }
    return sum;
  }

  ScopedIsa isa_{GetParam()};
};

TEST_P(GemmTest, MatchesTheOracleInEveryShape) {
  ThreadPool pool(2);
  for (const int64_t m : {1, 2, 5, 12, 13, 25, 40}) {
    for (const int64_t k : {2, 6, 64, 258, 1030}) {
      for (const int64_t n : {1, 8, 31, 32, 33, 130, 200}) {
        const Problem p(m, k, n, static_cast<uint64_t>(m * 7919 + k * 31 + n));
        const auto product = p.Run({.threads = &pool}, GemmOutput::kStore, false);
        const auto added = p.Run({.threads = &pool}, GemmOutput::kAdd, true);  // with the bias
        for (int64_t i = 0; i < m * n; ++i) {
          double magnitude;
          const double want = Oracle(p, i / n, i % n, &magnitude);
          const double tolerance = 2e-6 * magnitude + 1e-6;
          ASSERT_NEAR(product[i], want, tolerance)
              << "m " << m << " k " << k << " n " << n << " element " << i;
          ASSERT_NEAR(added[i], want + (p.bias[i % n] + p.start[i]), tolerance)
              << "m " << m << " k " << k << " n " << n << " element " << i;
        }
      }
    }
  }
}

// The factor of the up projection.
double GateOf(GemmOutput mode, double x) {
  if (mode == GemmOutput::kClampedGate) {
    x = std::min<double>(x, kLimit);
    return x / (1 + std::exp(-1.702 * x));
  }
  if (mode == GemmOutput::kSiluGate) return x / (1 + std::exp(-x));
  return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

TEST_P(GemmTest, GatesSixteenBySixteen) {
  for (const GemmOutput mode :
       {GemmOutput::kSiluGate, GemmOutput::kGeluGate, GemmOutput::kClampedGate}) {
    for (const bool with_bias : {false, true}) {
      const Problem p(9, 64, 96, 5);
      const auto got = p.Run({}, mode, with_bias);
      for (int64_t row = 0; row < 9; ++row) {
        for (int64_t c = 0; c < 48; ++c) {
          const int64_t gate_row = c / 16 * 32 + c % 16, up_row = gate_row + 16;
          double magnitude;
          const double gate =
              Oracle(p, row, gate_row, &magnitude) + (with_bias ? p.bias[gate_row] : 0);
          double up = Oracle(p, row, up_row, &magnitude) + (with_bias ? p.bias[up_row] : 0);
          if (mode == GemmOutput::kClampedGate) up = std::clamp<double>(up, -kLimit, kLimit) + 1;
          const double want = GateOf(mode, gate) * up;
          ASSERT_NEAR(got[row * 48 + c], want, 1e-5 * (1 + std::abs(want))) << row << " " << c;
        }
      }
    }
  }
}

TEST_P(GemmTest, ClampedGateClampsAndKeepsNan) {
  Problem p(1, 2, 32, 5);
  p.input = {0, 0};  // so that the product is the bias
  p.bias.assign(32, 0.5f);
  p.bias[0] = 100, p.bias[16] = 100;  // both above the limit
  p.bias[1] = -2, p.bias[17] = -100;  // up below it
  p.bias[2] = -100, p.bias[18] = 2;   // gate has no lower limit
  p.bias[3] = std::numeric_limits<float>::quiet_NaN();
  p.bias[20] = std::numeric_limits<float>::quiet_NaN();
  const auto got = p.Run({}, GemmOutput::kClampedGate, true);
  const auto swish = [](double x) { return x / (1 + std::exp(-1.702 * x)); };
  EXPECT_NEAR(got[0], swish(3) * 4, 1e-5);
  EXPECT_NEAR(got[1], swish(-2) * -2, 1e-5);
  EXPECT_NEAR(got[2], 0, 1e-5);
  EXPECT_TRUE(std::isnan(got[3]));
  EXPECT_TRUE(std::isnan(got[4]));
  EXPECT_NEAR(got[5], swish(0.5) * 1.5, 1e-5);
}

TEST_P(GemmTest, ActivatesWithoutAGate) {
  for (const GemmOutput mode : {GemmOutput::kGelu, GemmOutput::kGeluTanh}) {
    Problem p(9, 64, 96, 5);
    for (float& bias : p.bias) bias *= 4;  // from where GELU is 0 to where it is its argument
    const auto plain = p.Run({}, GemmOutput::kStore, true), got = p.Run({}, mode, true);
    for (size_t i = 0; i < plain.size(); ++i) {
      const double x = plain[i];
      const double want = mode == GemmOutput::kGelu ? x / 2 * std::erfc(-x * M_SQRT1_2)
                                                    : GateOf(GemmOutput::kGeluGate, x);
      ASSERT_NEAR(got[i], want, 1e-6 * (1 + std::abs(x))) << x;
    }
  }
}

TEST_P(GemmTest, ARowIsTheSameInEveryBatchAndWithEveryThreadCount) {
  constexpr int64_t kRows = 70;
  const Problem p(kRows, 1026, 200, 11);
  const auto whole = p.Run({}, GemmOutput::kStore, true);
  for (const int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    for (int64_t m = 1; m <= kRows; ++m) {
      const int64_t first = (m * 13) % (kRows - m + 1);
      const auto part = p.Run({.threads = &pool}, GemmOutput::kStore, true, first, m);
      const std::vector<float> same(whole.begin() + first * 200, whole.begin() + (first + m) * 200);
      ASSERT_EQ(part, same) << m << " rows from " << first << ", " << threads << " threads";
    }
  }
}

TEST_P(GemmTest, ManyRowsInSeveralPasses) {
  const Problem p(800, 512, 64, 13);  // more than one pass of blocks, more than one slice
  ThreadPool pool(2);
  const auto whole = p.Run({.threads = &pool}, GemmOutput::kStore, false);
  for (const int64_t row : {0, 383, 384, 799}) {
    const auto one = p.Run({}, GemmOutput::kStore, false, row, 1);
    const std::vector<float> same(whole.begin() + row * 64, whole.begin() + (row + 1) * 64);
    ASSERT_EQ(one, same) << row;
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, GemmTest, testing::ValuesIn(SupportedIsas()), TestName);

TEST(PackedMatrixTest, GivesBackItsRows) {
  RandomData random(3);
  const auto values = random.Bf16s(37 * 10);
  PackedMatrix matrix(37, 10);
  for (int64_t i = 0; i < 37; ++i) matrix.SetRow(i, values.data() + i * 10);
  std::vector<float> row(10);
  for (int64_t i = 0; i < 37; ++i) {
    matrix.GetRow(i, row.data());
    for (int64_t j = 0; j < 10; ++j) ASSERT_EQ(row[j], ToFloat(values[i * 10 + j]));
  }
}

}  // namespace
}  // namespace penstock
