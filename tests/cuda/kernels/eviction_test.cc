// The kernels of evictions on the emulated device, beside the CPU's functions on the same pages.

#include "kernels/cuda/eviction/eviction.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/isa.h"
#include "model/cuda/eviction/cuda_evictor.h"
#include "tests/cuda/emulator/emulator.h"
#include "tests/kernels/eviction/key_pages.h"

namespace penstock {
namespace {

namespace emulator = cuda::emulator;

constexpr int32_t kGroup = 3, kKvHeads = 2, kHeads = kGroup * kKvHeads, kLayer = 1;
constexpr int64_t kTokens = 1100;  // three splits, and a part of a tile
constexpr int64_t kObserved = 32;

KvLayout Layout(KvDtype dtype, int32_t head_dim = 64, int32_t block_tokens = 16) {
  return {.layers = 2,
          .kv_heads = kKvHeads,
          .head_dim = head_dim,
          .block_tokens = block_tokens,
          .dtype = dtype};
}

std::vector<float> InBf16(std::vector<float> values) {
  for (float& x : values) x = ToFloat(ToBf16(x));
  return values;
}

class CudaEvictionTest : public ::testing::TestWithParam<KvDtype> {
 protected:
  explicit CudaEvictionTest(int32_t head_dim = 64) : layout_(Layout(GetParam(), head_dim)) {}

  KeyScoresArgs Keys(KeyPages& pages, KeyScoring scoring, std::vector<float>& scores) const {
    scores.assign(static_cast<size_t>(kKvHeads * kTokens), 0.0f);
    return {.scoring = scoring,
            .kv = pages.kv(),
            .layer = kLayer,
            .blocks = pages.blocks(),
            .tokens = kTokens,
            .queries = {queries_.data(), {kObserved, kHeads * layout_.head_dim}},
            .heads = kHeads,
            .scale = 0.2f,
            .cap = 0,
            .scores = {scores.data(), {kKvHeads, kTokens}}};
  }
  // The runner of a GPU gives queries that are rotated already where keys are.
  KeyScoresArgs WithRotatedQueries(KeyScoresArgs args) {
    if (!layout_.IsRotated(KvPlane::kKeys)) return args;
    rotated_.assign(args.queries.data, args.queries.row(args.queries.dim(0)));
    cpu::RotateRows(rotated_.data(), args.queries.dim(0) * kHeads, layout_.head_dim);
    rotated_ = InBf16(rotated_);
    args.queries.data = rotated_.data();
    return args;
  }

  // What the CPU and the GPU give, and the largest difference relative to the largest score.
  double Deviation(KeyScoring scoring, float cap = 0) {
    std::vector<float> want, got;
    KeyScoresArgs args = Keys(pages_, scoring, want);
    args.cap = cap;
    ScoreKeys({}, args);
    args = WithRotatedQueries(Keys(pages_, scoring, got));
    args.cap = cap;
    evictor_->Score(args);
    double most = 0, largest = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      most = std::max(most, std::abs(double{want[i]} - got[i]));
      largest = std::max(largest, std::abs(double{want[i]}));
    }
    return most / largest;
  }

  std::string LayerOf(KeyPages& pages, uint32_t block) {
    return {reinterpret_cast<const char*>(pages.kv().Layer(block, kLayer)), layout_.LayerBytes()};
  }

  const ScopedIsa isa_{Isa::kPortable};  // whose products are not rounded
  const KvLayout layout_;
  KeyPages pages_{layout_, kTokens, 80, 5};
  std::vector<float> queries_ =
      InBf16(RandomData(12).Floats(kObserved * kHeads * layout_.head_dim));
  std::vector<float> rotated_;
  const std::unique_ptr<cuda::CudaDevice> device_ = *cuda::CudaDevice::Open(0);
  const std::unique_ptr<CudaEvictor> evictor_ = *CudaEvictor::Create(
      *device_,
      {.heads = kHeads, .kv_heads = kKvHeads, .head_dim = layout_.head_dim, .tokens_max = kTokens});
};

TEST_P(CudaEvictionTest, ScoresAreTheCpus) {
  EXPECT_LT(Deviation(KeyScoring::kKeyNorm), 1e-6);
  EXPECT_LT(Deviation(KeyScoring::kKeyDifference), 1e-5);
  // Rotated queries are rounded to bf16 on a GPU.
  const double rounding = layout_.IsRotated(KvPlane::kKeys) ? 2e-2 : 1e-4;
  EXPECT_LT(Deviation(KeyScoring::kAttention), rounding);
  EXPECT_LT(Deviation(KeyScoring::kLayerAttention), rounding);
  EXPECT_LT(Deviation(KeyScoring::kAttention, /*cap=*/1.5f), rounding);
  EXPECT_EQ(Deviation(KeyScoring::kRandom), 0);
}

// However the queries of a prompt come, in calls and with keys behind them.
TEST_P(CudaEvictionTest, SumsDoNotDependOnChunks) {
  std::vector<float> whole, parts;
  const KeyScoresArgs all = Keys(pages_, KeyScoring::kGiven, whole);
  evictor_->AddAttention(all);
  KeyScoresArgs part = Keys(pages_, KeyScoring::kGiven, parts);
  for (const auto& [first, count] : {std::pair{0, 1}, {1, 20}, {21, 11}}) {
    part.tokens = kTokens - kObserved + first + count;
    part.queries = {all.queries.row(first), {count, all.queries.dim(1)}};
    evictor_->AddAttention(part);
  }
  EXPECT_EQ(whole, parts);
}

// More queries than one launch takes, of all tokens from the first on.
TEST_P(CudaEvictionTest, ManyQueriesAreTakenSomeAfterOthers) {
  constexpr int64_t kRows = 150;
  const std::vector<float> queries =
      InBf16(RandomData(13).Floats(kRows * kHeads * layout_.head_dim));
  std::vector<float> want, got;
  KeyScoresArgs args = Keys(pages_, KeyScoring::kGiven, want);
  args.tokens = kRows;
  args.queries = {queries.data(), {kRows, kHeads * layout_.head_dim}};
  CpuEvictor cpu{Exec()};
  cpu.AddAttention(args);
  args.scores.data = Keys(pages_, KeyScoring::kGiven, got).scores.data;
  evictor_->AddAttention(WithRotatedQueries(args));
  const double rounding = layout_.IsRotated(KvPlane::kKeys) ? 2e-2 : 1e-4;
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], rounding * (1 + want[i])) << i;
  }
}

TEST_P(CudaEvictionTest, NoScheduleChangesABit) {
  std::vector<float> want, got;
  for (const KeyScoring scoring : {KeyScoring::kAttention, KeyScoring::kKeyDifference}) {
    evictor_->Score(Keys(pages_, scoring, want));
    for (const auto copies : {emulator::Copies::kLate, emulator::Copies::kEarly}) {
      for (const auto order : emulator::kOrders) {
        const emulator::ScopedSchedule schedule(copies, order);
        evictor_->Score(Keys(pages_, scoring, got));
        EXPECT_EQ(want, got);
      }
    }
  }
}

// Into other blocks, and in place with one block that others refer to: the bytes of the CPU.
TEST_P(CudaEvictionTest, MovesWhatTheCpuMoves) {
  const KeepRule rule{.keep = 805, .first = 2, .last = 4, .pool = 3};
  for (const bool in_place : {false, true}) {
    KeyPages cpu_pages{layout_, kTokens, 80, 5}, gpu_pages{layout_, kTokens, 80, 5};
    std::vector<uint32_t> to = in_place ? gpu_pages.blocks() : gpu_pages.free_blocks();
    if (in_place) to[2] = gpu_pages.free_blocks()[0];
    std::vector<float> scores;
    CpuEvictor cpu{Exec()};
    KeyScoresArgs keys = Keys(cpu_pages, KeyScoring::kRandom, scores);
    EvictLayer(cpu, {.keys = keys, .rule = rule, .to = to});
    for (const auto order : emulator::kOrders) {
      const emulator::ScopedSchedule schedule(emulator::Copies::kLate, order);
      KeyPages pages{layout_, kTokens, 80, 5};
      keys = Keys(pages, KeyScoring::kRandom, scores);
      EvictLayer(*evictor_, {.keys = keys, .rule = rule, .to = to});
      for (int64_t block = 0; block < pages.kv().blocks; ++block) {
        ASSERT_EQ(LayerOf(pages, static_cast<uint32_t>(block)),
                  LayerOf(cpu_pages, static_cast<uint32_t>(block)))
            << block << (in_place ? " in place" : "");
      }
    }
  }
}

// Spans lead, so that slots do not ascend; more slots than one block of threads copies.
TEST_P(CudaEvictionTest, MovesSpansToTheFront) {
  const KeepRule rule{.keep = 900, .first = 4, .last = 1, .pool = 1, .spans = {{700, 712}}};
  KeyPages cpu_pages{layout_, kTokens, 80, 5}, pages{layout_, kTokens, 80, 5};
  std::vector<float> scores;
  CpuEvictor cpu{Exec()};
  EvictLayer(cpu, {.keys = Keys(cpu_pages, KeyScoring::kRandom, scores),
                   .rule = rule,
                   .to = cpu_pages.free_blocks()});
  EvictLayer(
      *evictor_,
      {.keys = Keys(pages, KeyScoring::kRandom, scores), .rule = rule, .to = pages.free_blocks()});
  for (int64_t block = 0; block < pages.kv().blocks; ++block) {
    ASSERT_EQ(LayerOf(pages, static_cast<uint32_t>(block)),
              LayerOf(cpu_pages, static_cast<uint32_t>(block)));
  }
}

class CudaWideEvictionTest : public CudaEvictionTest {
 protected:
  CudaWideEvictionTest() : CudaEvictionTest(128) {}
};

TEST_P(CudaWideEvictionTest, ScoresAreTheCpus) {
  EXPECT_LT(Deviation(KeyScoring::kKeyNorm), 1e-6);
  EXPECT_LT(Deviation(KeyScoring::kKeyDifference), 1e-5);
  EXPECT_LT(Deviation(KeyScoring::kAttention), layout_.IsRotated(KvPlane::kKeys) ? 2e-2 : 1e-4);
}

std::string NameOf(const ::testing::TestParamInfo<KvDtype>& test) {
  return std::string(KvDtypeName(test.param));
}
INSTANTIATE_TEST_SUITE_P(Formats, CudaEvictionTest, ::testing::ValuesIn(kKvDtypes), NameOf);
INSTANTIATE_TEST_SUITE_P(Formats, CudaWideEvictionTest, ::testing::ValuesIn(kKvDtypes), NameOf);

}  // namespace
}  // namespace penstock
