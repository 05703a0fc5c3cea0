// Tokens that move to other positions on a GPU, and re-used values beside computed ones, against
// the CPU's.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "kernels/blend/deviation.h"
#include "kernels/buffer.h"
#include "model/cuda/blend/cuda_blend.h"
#include "tests/cuda/cases/blend_case.h"

namespace penstock {
namespace {

constexpr int32_t kPage = 16, kBlocks = 60;
constexpr KvLayout kLayout{.layers = 3, .kv_heads = 6, .head_dim = 64, .block_tokens = kPage};
constexpr int64_t kWidth = int64_t{kLayout.kv_heads} * kLayout.head_dim;

// A pool of random keys and values. The emulated GPU's memory is the host's.
class Pool {
 public:
  Pool() : memory_(kBlocks * kLayout.BlockStride()) {
    std::mt19937_64 random(3);
    std::normal_distribution<float> normal;
    auto* elements = memory_.as<Bf16>();
    for (size_t i = 0; i < memory_.bytes() / sizeof(Bf16); ++i)
      elements[i] = ToBf16(normal(random));
    kv_ = {.arena = memory_.as<std::byte>(), .blocks = kBlocks, .layout = kLayout};
  }
  const PagedKv& kv() const { return kv_; }
  std::vector<float> Row(uint32_t block, int32_t layer, int32_t head, KvPlane plane,
                         int32_t slot) const {
    std::vector<Bf16> row(kLayout.head_dim);
    cpu::LoadKvRows(kv_,
                    {.block = block, .layer = layer, .kv_head = head, .plane = plane, .slot = slot},
                    1, row.data());
    std::vector<float> values;
    for (const Bf16 value : row) values.push_back(ToFloat(value));
    return values;
  }

 private:
  Buffer memory_;
  PagedKv kv_;
};

std::vector<uint32_t> Table(uint32_t first, uint32_t step) {
  std::vector<uint32_t> table;
  for (uint32_t block = first; block < kBlocks; block += step) table.push_back(block);
  return table;
}

class CudaBlendTest : public ::testing::Test {
 protected:
  // Layer 0 has the first table of frequencies, layer 1 the second, and layer 2 none.
  CudaBlendTest() {
    const auto created = [&] {
      return CudaBlend::Create(*device_, {.angles = {&whole_, &part_},
                                          .angles_of = {0, 1, -1},
                                          .value_width = kWidth,
                                          .rows_max = 100});
    };
    blend_ = *created();
  }

  std::unique_ptr<cuda::CudaDevice> device_ = *cuda::CudaDevice::Open(0);
  AngleTable whole_{{.theta = 10000, .attention_factor = 1.25f}, 64};
  AngleTable part_{{.theta = 500, .rotary_dims = 24}, 64};
  std::unique_ptr<CudaBlend> blend_;
};

TEST_F(CudaBlendTest, TokensMoveAsOnTheCpu) {
  const Pool here, there;
  const std::vector<uint32_t> from = Table(0, 2), to = Table(1, 2);
  for (const int64_t target : {int64_t{21}, int64_t{300}, int64_t{37}}) {
    MoveTokensArgs args{.kv = here.kv(),
                        .from = from,
                        .to = to,
                        .from_position = 37,
                        .to_position = target,
                        .tokens = 115};
    KeyRotations rotations = blend_->rotations();
    MoveTokens(rotations, args);
    cuda::Synchronize(device_->stream());
    rotations.mover = nullptr;
    args.kv = there.kv();
    MoveTokens(rotations, args);
  }
  int64_t different = 0;
  for (uint32_t block = 0; block < kBlocks; ++block) {
    for (int i = 0; i < kLayout.layers * kLayout.kv_heads * kPage; ++i) {
      const int32_t layer = i / (kLayout.kv_heads * kPage), head = i / kPage % kLayout.kv_heads;
      const int32_t slot = i % kPage;
      EXPECT_EQ(here.Row(block, layer, head, KvPlane::kValues, slot),
                there.Row(block, layer, head, KvPlane::kValues, slot));
      const auto got = here.Row(block, layer, head, KvPlane::kKeys, slot);
      const auto want = there.Row(block, layer, head, KvPlane::kKeys, slot);
      for (size_t d = 0; d < got.size(); ++d) {
        // A rounding to bf16, near a tie.
        ASSERT_NEAR(got[d], want[d], 0x1p-7 * std::fabs(want[d]) + 1e-5) << layer << " " << d;
        different += got[d] != want[d] ? 1 : 0;
      }
      if (layer == 2) {
        EXPECT_EQ(got, want);
      }
    }
  }
  EXPECT_LT(different, 100);
}

TEST(BlendCaseTest, KernelsAgreeWithDoublePrecision) {
  for (const cuda::BlendCase& c :
       {cuda::BlendCase(), cuda::BlendCase{.kv_heads = 1, .head_dim = 64, .pairs = 12}}) {
    const cuda::BlendResult result = cuda::RunBlend(c);
    EXPECT_TRUE(result.values_equal);
    EXPECT_GT(result.keys, 0);
    EXPECT_LT(result.keys, 4e-3);
    EXPECT_LT(result.squares, 1e-5);
  }
}

TEST_F(CudaBlendTest, ComparesValuesAsTheCpu) {
  const Pool pool;
  constexpr int32_t kLayer = 1;
  std::vector<KvSlot> slots;
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < 100; ++i) {
    const int64_t number = i * 7 % (kBlocks * kPage);
    numbers.push_back(number);
    slots.push_back({.block = static_cast<uint32_t>(number / kPage),
                     .slot = static_cast<int32_t>(number % kPage)});
  }
  const cuda::KvPlanes planes = cuda::PlanesOf(pool.kv(), kLayer);
  blend_->KeepValues(planes, numbers.data(), std::ssize(numbers));
  cuda::Synchronize(device_->stream());
  std::vector<float> before_memory, after_memory;
  const auto before = ReadValues(pool.kv(), kLayer, slots, before_memory);
  // Every third row gets other values.
  for (size_t i = 0; i < slots.size(); i += 3) {
    for (int32_t head = 0; head < kLayout.kv_heads; ++head) {
      std::vector<float> row(kLayout.head_dim, 0.25f * static_cast<float>(i));
      cpu::StoreKvRow(pool.kv(),
                      {.block = slots[i].block,
                       .layer = kLayer,
                       .kv_head = head,
                       .plane = KvPlane::kValues,
                       .slot = slots[i].slot},
                      row.data());
    }
  }
  const auto after = ReadValues(pool.kv(), kLayer, slots, after_memory);
  const ValueDeviation want = DeviationOf(before, after, 0);
  const auto got = blend_->CompareValues(planes, numbers.data(), std::ssize(numbers));
  ASSERT_TRUE(got.ok()) << got.status();
  double differences = 0, all = 0;
  for (size_t i = 0; i < slots.size(); ++i) {
    EXPECT_NEAR((*got)[2 * i], want.tokens[i], 1e-5 * want.tokens[i]) << i;
    if (i % 3 != 0) {
      EXPECT_EQ((*got)[2 * i], 0);
    }
    differences += (*got)[2 * i];
    all += (*got)[2 * i + 1];
  }
  EXPECT_NEAR(std::sqrt(differences / all), want.relative, 1e-5);
}

}  // namespace
}  // namespace penstock
