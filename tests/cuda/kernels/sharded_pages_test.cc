// Pages whose heads are spread over several (emulated) GPUs, as the host sees them.

#include "kernels/cuda/sharded/sharded_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>

#include "kernels/cuda/sharded/head_ranges.h"
#include "tests/support/environment.h"

namespace penstock::cuda {
namespace {

constexpr int64_t kBlocks = 7;

struct ShardCase {
  KvDtype dtype = KvDtype::kBf16;
  bool latents = false;
  int ranks = 2;
  size_t slot_bytes = size_t{4} << 20;
};

KvLayout LayoutOf(const ShardCase& c) {
  if (c.latents) return {.layers = 3, .kv_heads = 1, .head_dim = 576, .latent_rope_dim = 64};
  return {.layers = 3, .kv_heads = 4, .head_dim = 64, .block_tokens = 16, .dtype = c.dtype};
}

class ShardedPagesTest : public testing::TestWithParam<ShardCase> {
 protected:
  ShardedPagesTest() : mirror_(kBlocks * layout_.BlockStride()) {
    std::vector<std::unique_ptr<CudaPages>> ranks;
    for (int rank = 0; rank < GetParam().ranks; ++rank) {
      devices_.push_back(*CudaDevice::Open(rank));
      ranks.push_back(*CudaPages::Create(*devices_.back(), LayoutOfRank(layout_, GetParam().ranks),
                                         {.blocks = kBlocks},
                                         {.slot_bytes = GetParam().slot_bytes}));
    }
    pages_ = std::make_unique<ShardedPages>(std::move(ranks));
  }

  void Write(const std::vector<uint32_t>& ids, size_t offset, size_t bytes) {
    std::vector<std::byte> host(ids.size() * bytes);
    for (std::byte& byte : host) byte = static_cast<std::byte>(random_());
    pages_->Write(ids, offset, bytes, host.data());
    for (size_t i = 0; i < ids.size(); ++i) {
      std::byte* page = mirror_.data() + ids[i] * layout_.BlockStride();
      std::copy_n(host.data() + i * bytes, bytes, page + offset);
      std::fill(page + layout_.PayloadBytes(), page + layout_.BlockStride(), std::byte{0});
    }
  }
  void ExpectRead(const std::vector<uint32_t>& ids, size_t offset, size_t bytes) {
    std::vector<std::byte> host(ids.size() * bytes + 1, std::byte{0x5a}), want;
    pages_->Read(ids, offset, bytes, host.data());
    for (const uint32_t id : ids) {
      const auto from =
          mirror_.begin() + static_cast<ptrdiff_t>(id * layout_.BlockStride() + offset);
      want.insert(want.end(), from, from + static_cast<ptrdiff_t>(bytes));
    }
    want.push_back(std::byte{0x5a});
    EXPECT_TRUE(host == want) << offset << " on " << bytes;
  }

  const ScopedEnvironment gpus_{"PENSTOCK_EMULATED_GPUS", "4"};
  const KvLayout layout_ = LayoutOf(GetParam());
  std::vector<std::unique_ptr<CudaDevice>> devices_;
  std::unique_ptr<ShardedPages> pages_;
  std::vector<std::byte> mirror_;
  std::mt19937_64 random_{1};
};

TEST_P(ShardedPagesTest, HoldWhatTheyWereGiven) {
  EXPECT_EQ(pages_->view().layout, layout_);
  EXPECT_EQ(pages_->view().blocks, kBlocks);
  const std::vector<uint32_t> some = {6, 0, 3, 1}, all = {0, 1, 2, 3, 4, 5, 6};
  const size_t layer = layout_.LayerBytes(), stride = layout_.BlockStride();
  ExpectRead(all, 0, stride);  // zeros
  Write(some, 0, layout_.PayloadBytes());
  Write({2, 5}, 0, stride);
  Write({6, 2}, layer, 2 * layer);
  Write({5}, 16, layer + 32);  // of no layer's bounds
  ExpectRead(all, 0, stride);
  ExpectRead(some, layer, layer);
  ExpectRead({5, 2}, layer - 32, 64);
  ExpectRead({}, 0, 16);
}

// A GPU's kernels see the pages of its own heads alone, but whole ones of latents.
TEST_P(ShardedPagesTest, EveryGpuHasItsHeads) {
  Write({4}, 0, layout_.PayloadBytes());
  const uint32_t page = 4;
  std::vector<std::byte> whole(layout_.PayloadBytes());
  pages_->Read({&page, 1}, 0, whole.size(), whole.data());
  for (int rank = 0; rank < pages_->ranks(); ++rank) {
    const PagedKv& own = pages_->view_of(rank);
    std::vector<std::byte> part(own.layout.PayloadBytes());
    own.copier->Read({&page, 1}, 0, part.size(), part.data());
    const size_t heads = own.layout.kv_heads * own.layout.HeadBytes();
    const size_t place = layout_.HasLatents() ? 0 : static_cast<size_t>(rank) * heads;
    for (int32_t layer = 0; layer < layout_.layers; ++layer) {
      const auto from =
          whole.begin() + static_cast<ptrdiff_t>(layer * layout_.LayerBytes() + place);
      EXPECT_TRUE(
          std::equal(from, from + static_cast<ptrdiff_t>(heads),
                     part.begin() + static_cast<ptrdiff_t>(layer * own.layout.LayerBytes())))
          << rank << " " << layer;
    }
  }
}

std::vector<ShardCase> Cases() {
  std::vector<ShardCase> cases = {{.ranks = 1},
                                  {.ranks = 4, .slot_bytes = 4096},
                                  {.latents = true, .ranks = 2},
                                  {.latents = true, .ranks = 4, .slot_bytes = 4096}};
  for (const KvDtype dtype : kKvDtypes) {
    cases.push_back({.dtype = dtype, .ranks = 2});
    cases.push_back({.dtype = dtype, .ranks = 4, .slot_bytes = 16 << 10});
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Degrees, ShardedPagesTest, testing::ValuesIn(Cases()));

}  // namespace
}  // namespace penstock::cuda
