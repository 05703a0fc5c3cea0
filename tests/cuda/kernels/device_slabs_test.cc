// Slabs in (emulated) device memory beside pages there.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "base/crc32c.h"
#include "kernels/cuda/cuda_pages.h"
#include "kernels/cuda/cuda_slabs.h"
#include "tests/cuda/emulator/emulated_memory.h"

namespace penstock::cuda {
namespace {

constexpr KvLayout kLayout{.layers = 3, .kv_heads = 2, .head_dim = 64, .dtype = KvDtype::kI8};
constexpr int64_t kBlocks = 9;
constexpr size_t kStaging = size_t{256} << 10;

class DeviceSlabsTest : public testing::Test {
 protected:
  DeviceSlabsTest() {
    std::vector<std::byte> bytes(kBlocks * kLayout.BlockStride());
    std::mt19937_64 random(1);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    std::vector<uint32_t> all(kBlocks);
    for (uint32_t i = 0; i < kBlocks; ++i) all[i] = i;
    pages_->Write(all, 0, kLayout.BlockStride(), bytes.data());
  }
  ~DeviceSlabsTest() override { slabs_->Free(staging_, kStaging); }

  std::vector<std::byte> Read(const DeviceSlabs::Pieces& pieces) {
    std::vector<std::byte> host(pieces.total());
    pages_->Read(pieces.pages, pieces.offset, pieces.bytes, host.data());
    return host;
  }
  std::span<std::byte> Seen(size_t bytes) const {
    return {emulator::SeenByHardware(staging_), bytes};
  }
  uint32_t Sum(size_t bytes) {
    uint32_t sum = 0;
    slabs_->Sum({staging_, bytes}, [&](uint32_t crc) { sum = crc; });
    slabs_->Drain();
    return sum;
  }

  std::unique_ptr<CudaDevice> device_ = *CudaDevice::Open(0);
  std::unique_ptr<CudaPages> pages_ = *CudaPages::Create(*device_, kLayout, kBlocks);
  std::unique_ptr<CudaSlabs> slabs_ =
      *CudaSlabs::Create(*device_, pages_->view(), {.slab_bytes_max = kStaging});
  std::byte* staging_ = slabs_->Allocate(kStaging);
};

TEST_F(DeviceSlabsTest, GathersScattersAndSumsWhatPagesHold) {
  const std::vector<uint32_t> from = {7, 0, 3}, to = {1, 8, 2};
  const DeviceSlabs::Pieces source{from, kLayout.LayerBytes(), 2 * kLayout.LayerBytes()};
  const DeviceSlabs::Pieces target{to, kLayout.LayerBytes(), 2 * kLayout.LayerBytes()};
  const std::vector<std::byte> wanted = Read(source), before = Read({to, 0, kLayout.LayerBytes()});
  DeviceSlabs::Gathering gathering{.pieces = source, .slab = staging_};
  slabs_->Gather({&gathering, 1});
  EXPECT_EQ(gathering.crc, Crc32c(wanted));
  EXPECT_TRUE(std::ranges::equal(Seen(wanted.size()), wanted));
  EXPECT_EQ(Sum(wanted.size()), Crc32c(wanted));
  bool over = false;
  slabs_->Scatter(target, staging_, [&] { over = true; });
  slabs_->Drain();
  EXPECT_TRUE(over);
  EXPECT_EQ(Read(target), wanted);
  EXPECT_EQ(Read({to, 0, kLayout.LayerBytes()}), before);  // The layer before stays.
}

// More than share a wait.
TEST_F(DeviceSlabsTest, GathersManyAtOnceAndCopiesThemToTheHost) {
  constexpr size_t kCount = 37;
  ASSERT_GT(kCount, 2 * slabs_->gathered_at_once());
  const size_t layer = kLayout.LayerBytes();
  ASSERT_LE(kCount * layer, kStaging);
  std::byte* const pinned = slabs_->AllocatePinned(kStaging);
  ASSERT_NE(pinned, nullptr);
  std::vector<std::vector<uint32_t>> pages;
  for (uint32_t i = 0; i < kCount; ++i) pages.push_back({i % static_cast<uint32_t>(kBlocks)});
  std::vector<DeviceSlabs::Gathering> all;
  for (size_t i = 0; i < kCount; ++i) {
    all.push_back({.pieces = {pages[i], i % 3 * layer, layer},
                   .slab = staging_ + i * layer,
                   .pinned = i % 2 == 0 ? nullptr : pinned + i * layer});
  }
  slabs_->Gather(all);
  for (size_t i = 0; i < kCount; ++i) {
    const std::vector<std::byte> wanted = Read(all[i].pieces);
    EXPECT_EQ(all[i].crc, Crc32c(wanted)) << i;
    EXPECT_TRUE(std::ranges::equal(Seen(kStaging).subspan(i * layer, layer), wanted)) << i;
    if (all[i].pinned == nullptr) continue;
    EXPECT_EQ(std::memcmp(all[i].pinned, wanted.data(), layer), 0) << i;
  }
  // And back: a sum of what is in the host's memory takes it to the GPU's.
  std::ranges::fill(Seen(kStaging), std::byte{0});
  uint32_t crc = 0;
  slabs_->SumFromHost(pinned + layer, {staging_ + layer, layer}, [&](uint32_t sum) { crc = sum; });
  slabs_->Drain();
  EXPECT_EQ(crc, all[1].crc);
  EXPECT_EQ(std::memcmp(Seen(kStaging).data() + layer, pinned + layer, layer), 0);
  slabs_->ReadSlab({staging_ + layer, layer}, pinned);
  EXPECT_EQ(std::memcmp(pinned, pinned + layer, layer), 0);
  slabs_->FreePinned(pinned, kStaging);
}

TEST_F(DeviceSlabsTest, SumsWhatWiresBringOfAnyLength) {
  std::mt19937_64 random(2);
  for (std::byte& byte : Seen(kStaging)) byte = static_cast<std::byte>(random());
  for (const size_t bytes :
       {0ul, 1ul, 15ul, 16ul, 17ul, 511ul, 16384ul, 16391ul, 100'000ul, kStaging}) {
    EXPECT_EQ(Sum(bytes), Crc32c(Seen(bytes))) << bytes;
  }
  Seen(kStaging)[70'000] ^= std::byte{1};
  const uint32_t damaged = Sum(100'000);
  Seen(kStaging)[70'000] ^= std::byte{1};
  EXPECT_NE(Sum(100'000), damaged);
}

// More than are waited for together, in order, and what they begin in turn.
TEST_F(DeviceSlabsTest, CallsBackInOrderAndDrainsWhatFollows) {
  std::mt19937_64 random(3);
  for (std::byte& byte : Seen(kStaging)) byte = static_cast<std::byte>(random());
  std::vector<uint32_t> sums, wanted;
  for (size_t bytes = 16; bytes <= 21 * 16; bytes += 16) {
    wanted.push_back(Crc32c(Seen(bytes)));
    slabs_->Sum({staging_, bytes}, [&](uint32_t crc) {
      sums.push_back(crc);
      if (sums.size() < 21) return;
      slabs_->Sum({staging_, 22 * 16}, [&](uint32_t last) { sums.push_back(last); });
    });
  }
  slabs_->Drain();
  wanted.push_back(Crc32c(Seen(22 * 16)));
  EXPECT_EQ(sums, wanted);
}

TEST_F(DeviceSlabsTest, MemoryThatIsNotThereIsSaidSo) {
  EXPECT_EQ(slabs_->Allocate(size_t{1} << 60), nullptr);
}

}  // namespace
}  // namespace penstock::cuda
