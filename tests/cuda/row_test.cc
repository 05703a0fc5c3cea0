#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "kernels/cuda/emulator.h"
#include "kernels/isa.h"
#include "kernels/kv_quant.h"
#include "tests/cuda/row_case.h"

namespace penstock::cuda {
namespace {

using emulator::Order;
using enum KvCode;

TEST(RowOps, AreWhatTheOraclesSay) {
  for (const Order order : {Order::kAscending, Order::kDescending}) {
    const emulator::ScopedSchedule schedule(emulator::Copies::kLate, order);
    for (const int hidden : {8, 256, 1000}) {
      EXPECT_LT(NormDeviation(3, hidden, 1, 1), 5e-3) << hidden;
      EXPECT_LT(NormDeviation(2, hidden, 4, 2), 5e-3) << hidden;
      EXPECT_LT(SiluDeviation(3, hidden, 2, 3), 5e-3) << hidden;
      EXPECT_TRUE(EmbeddingIsExact(5, hidden, 4));
      EXPECT_TRUE(GatherRowsIsExact(5, hidden, 5));
    }
    EXPECT_LT(NormDeviation(3, 512, 0, 6), 5e-3);
  }
}

class RopeAppendTest : public testing::TestWithParam<RopeCase> {};

TEST_P(RopeAppendTest, RotatesAndKeeps) {
  for (const Order order : {Order::kAscending, Order::kDescending}) {
    const emulator::ScopedSchedule schedule(emulator::Copies::kLate, order);
    const RopeDeviation deviation = RunRopeAppend(GetParam());
    EXPECT_LT(deviation.queries, 5e-3);
    EXPECT_LT(deviation.kept, 1.0);
    EXPECT_TRUE(deviation.untouched);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, RopeAppendTest,
    testing::Values(RopeCase{}, RopeCase{.head_dim = 64, .rows = 33, .slices = 3},
                    RopeCase{.page = 32, .rows = 40, .norms = true},
                    RopeCase{.head_dim = 64, .norms = true, .bias = true},
                    RopeCase{.keys = kF8, .values = kF8},
                    RopeCase{.keys = kF8, .values = kF8, .head_dim = 64, .deviation = 1e-4f},
                    RopeCase{.keys = kF8, .values = kF8, .deviation = 300.0f},
                    RopeCase{.keys = kI8, .values = kI8, .rows = 20},
                    RopeCase{.keys = kI8, .values = kI4, .head_dim = 64},
                    RopeCase{.keys = kI4, .values = kI4, .rotated = true},
                    RopeCase{.keys = kI4, .values = kI4, .head_dim = 64, .rotated = true},
                    RopeCase{.keys = kI8, .values = kI8, .deviation = 0}));

// The same, made by the CPU.
std::vector<std::byte> EncodeOnCpu(const HeadCase& c) {
  const auto dim = static_cast<int>(c.x.size());
  std::vector<Bf16> row;
  for (int i = 0; i < dim; ++i) {
    const int half = dim / 2, angle = i % half;
    const float cosine = c.cosines[angle], sine = c.sines[angle];
    const float straight = c.x[i] * cosine;
    const float crossed = c.x[(i + half) % dim] * sine;
    row.push_back(ToBf16(!c.key ? c.x[i] : i < half ? straight - crossed : straight + crossed));
  }
  const KvQuantOps& ops = KvQuantOpsFor(Isa::kPortable);
  std::vector<std::byte> kept(dim * CodeBits(c.code) / 8 + ScaleBytes(c.code));
  auto* codes = reinterpret_cast<uint8_t*>(kept.data());
  KvGroupParams params;
  if (c.code == kI8) ops.encode_i8(row.data(), 1, dim, codes, &params);
  if (c.code == kI4) ops.encode_i4(row.data(), 1, dim, c.rotated && c.key, codes, &params);
  if (c.code == kF8) ops.encode_f8(row.data(), 1, dim, F8Format::kE4m3, codes, &params.scale);
  std::memcpy(kept.data() + kept.size() - ScaleBytes(c.code), &params, ScaleBytes(c.code));
  return kept;
}

TEST(RopeAppendCodes, AreTheCpusByteForByte) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  for (const KvCode code : {kI8, kI4, kF8}) {
    for (int i = 0; i < 24; ++i) {
      HeadCase c{.code = code, .key = i % 2 == 0, .rotated = code == kI4 && i % 4 < 2};
      const int dim = i % 3 == 0 ? 64 : 128;
      const float deviation = std::exp2(normal(random) * 10), mean = normal(random);
      for (int d = 0; d < dim; ++d) c.x.push_back((normal(random) + mean) * deviation);
      if (i == 5) c.x.assign(dim, 0.0f);
      if (i == 7) c.x.assign(dim, -3.25f);
      for (int d = 0; d < dim / 2; ++d) {
        c.cosines.push_back(normal(random));
        c.sines.push_back(normal(random));
      }
      ASSERT_EQ(AppendHead(c), EncodeOnCpu(c)) << static_cast<int>(code) << " " << i;
    }
  }
}

}  // namespace
}  // namespace penstock::cuda
