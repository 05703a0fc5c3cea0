// Pages in (emulated) device memory, and the host's way to them.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "kernels/cuda/cuda_pages.h"

namespace penstock::cuda {
namespace {

constexpr KvLayout kLayout{.layers = 3, .kv_heads = 2, .head_dim = 64, .dtype = KvDtype::kI8};
constexpr int64_t kBlocks = 9;

std::vector<std::byte> RandomBytes(size_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Beside a copy of what the pages should hold.
class PagesTest : public testing::TestWithParam<CudaPages::Options> {
 protected:
  void Write(const std::vector<uint32_t>& ids, size_t offset, size_t bytes, uint64_t seed) {
    const std::vector<std::byte> host = RandomBytes(ids.size() * bytes, seed);
    pages_->Write(ids, offset, bytes, host.data());
    for (size_t i = 0; i < ids.size(); ++i) {
      std::copy_n(host.data() + i * bytes, bytes,
                  mirror_.data() + ids[i] * kLayout.BlockStride() + offset);
    }
  }
  void ExpectRead(const std::vector<uint32_t>& ids, size_t offset, size_t bytes) {
    std::vector<std::byte> host(ids.size() * bytes + 1, std::byte{0x5a}), want;
    pages_->Read(ids, offset, bytes, host.data());
    for (const uint32_t id : ids) {
      const auto from =
          mirror_.begin() + static_cast<ptrdiff_t>(id * kLayout.BlockStride() + offset);
      want.insert(want.end(), from, from + static_cast<ptrdiff_t>(bytes));
    }
    want.push_back(std::byte{0x5a});
    EXPECT_EQ(host, want);
  }

  std::unique_ptr<CudaDevice> device_ = *CudaDevice::Open(0);
  std::unique_ptr<CudaPages> pages_ =
      *CudaPages::Create(*device_, kLayout, {.blocks = kBlocks}, GetParam());
  std::vector<std::byte> mirror_ = std::vector<std::byte>(kBlocks * kLayout.BlockStride());
};

TEST_P(PagesTest, HoldWhatTheyWereGiven) {
  const std::vector<uint32_t> some = {7, 0, 3, 8, 1}, all = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  ExpectRead(all, 0, kLayout.BlockStride());  // zeros
  Write(some, 0, kLayout.PayloadBytes(), 1);
  Write({2, 8}, kLayout.LayerBytes(), 2 * kLayout.LayerBytes(), 2);
  Write({5}, 16, 32, 3);
  ExpectRead(all, 0, kLayout.BlockStride());
  ExpectRead(some, kLayout.LayerBytes(), kLayout.LayerBytes());
  ExpectRead({5, 8}, 32, 16);
  ExpectRead({}, 0, 16);
}

// Slots that hold one page's pieces of several, of one, and a part of one.
INSTANTIATE_TEST_SUITE_P(Rings, PagesTest,
                         testing::Values(CudaPages::Options{},
                                         CudaPages::Options{.slot_bytes = 64 << 10, .slots = 2},
                                         CudaPages::Options{.slot_bytes = 16 << 10, .slots = 3},
                                         CudaPages::Options{.slot_bytes = 4096, .slots = 1}));

TEST(Pages, OfOddPiecesAreRefused) {
  const auto device = *CudaDevice::Open(0);
  const auto pages =
      CudaPages::Create(*device, {.layers = 1, .kv_heads = 1, .head_dim = 2, .block_tokens = 1}, 1);
  EXPECT_EQ(pages.status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace penstock::cuda
