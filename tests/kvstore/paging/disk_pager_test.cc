// Pages in a file have the bytes that were written, whatever of them is in memory, and no more than
// the limit stays there.

#include "kvstore/paging/disk_pager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>

#include "kvstore/cache/block_pool.h"

namespace penstock {
namespace {

constexpr int64_t kBlocks = 64;
constexpr auto kPatience = std::chrono::seconds(60);

// Blocks of 64 KiB: four layers of four system pages.
KvLayout Layout() { return {.layers = 4, .kv_heads = 4, .head_dim = 64}; }

// A test runs in the build folder, which is on a disk.
DiskPager::Options Options(uint64_t memory_bytes, std::string directory = ".") {
  return {.directory = std::move(directory), .blocks = kBlocks, .memory_bytes = memory_bytes};
}

// Waits for the pager's thread. False if the condition does not come true.
bool Eventually(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

// What the system says is in memory of `bytes` bytes.
size_t BytesInMemory(const std::byte* data, size_t bytes) {
  std::vector<unsigned char> pages(bytes / kSystemPageBytes);
  EXPECT_EQ(mincore(const_cast<std::byte*>(data), bytes, pages.data()), 0);
  return kSystemPageBytes * static_cast<size_t>(std::count_if(pages.begin(), pages.end(),
                                                              [](auto p) { return p & 1; }));
}

class DiskPagerTest : public testing::Test {
 protected:
  static constexpr uint64_t kMemory = 1 << 20;  // a quarter

  void SetUp() override {
    auto pager = DiskPager::Create(Layout(), Options(kMemory));
    ASSERT_TRUE(pager.ok()) << pager.status();
    pager_ = *std::move(pager);
    pages_ = pager_->pages();
    bytes_ = static_cast<size_t>(kBlocks) * Layout().BlockStride();
  }

  // Every byte depends on its place and on `round`.
  static std::byte ByteAt(size_t at, int round) {
    return static_cast<std::byte>(at / 4096 * 31 + at % 251 + static_cast<size_t>(round));
  }
  void Fill(int round) {
    for (uint32_t block = 0; block < kBlocks; ++block) {
      pager_->OnTaken(block);
      const size_t first = block * Layout().BlockStride();
      for (size_t i = 0; i < Layout().BlockStride(); ++i) {
        pages_.arena[first + i] = ByteAt(first + i, round);
      }
    }
  }
  bool IsFilled(int round) const {
    for (size_t at = 0; at < bytes_; ++at) {
      if (pages_.arena[at] != ByteAt(at, round)) return false;
    }
    return true;
  }

  std::unique_ptr<DiskPager> pager_;
  PagedKv pages_;
  size_t bytes_ = 0;
};

TEST_F(DiskPagerTest, KeepsNoMoreThanTheLimitInMemory) {
  Fill(0);
  EXPECT_TRUE(Eventually([&] { return BytesInMemory(pages_.arena, bytes_) <= kMemory; }));
  EXPECT_TRUE(Eventually([&] { return pager_->stats().resident_bytes <= kMemory; }));
  EXPECT_EQ(pager_->stats().file_bytes, bytes_);
  // Counted when they are no longer in memory.
  EXPECT_TRUE(Eventually([&] { return pager_->stats().bytes_dropped >= bytes_ - kMemory; }));
}

TEST_F(DiskPagerTest, BytesAreThoseThatWereWritten) {
  for (int round = 0; round < 3; ++round) {
    Fill(round);
    ASSERT_TRUE(Eventually([&] { return BytesInMemory(pages_.arena, bytes_) <= kMemory; }));
    EXPECT_TRUE(IsFilled(round));
  }
}

// Pages that were read without a word to the pager are counted, and leave.
TEST_F(DiskPagerTest, FindsWhatNobodyToldOf) {
  Fill(0);
  ASSERT_TRUE(Eventually([&] { return BytesInMemory(pages_.arena, bytes_) <= kMemory; }));
  EXPECT_TRUE(IsFilled(0));
  const uint32_t wanted[] = {0};
  EXPECT_TRUE(Eventually([&] {
    pager_->OnWanted(wanted, 0);
    return BytesInMemory(pages_.arena, bytes_) <= kMemory;
  }));
}

TEST_F(DiskPagerTest, ReadsWhatIsWanted) {
  Fill(0);
  ASSERT_TRUE(Eventually([&] { return pager_->stats().resident_bytes <= kMemory; }));
  const size_t layer = Layout().LayerBytes();
  const auto is_here = [&](uint32_t block) {
    return BytesInMemory(pages_.Layer(block, 1), layer) == layer;
  };
  std::vector<uint32_t> wanted;  // a few that are not there
  for (uint32_t block = 0; block < kBlocks && wanted.size() < 4; ++block) {
    if (!is_here(block)) wanted.push_back(block);
  }
  ASSERT_EQ(wanted.size(), 4u);
  const std::span all(wanted);
  EXPECT_THAT(pager_->OnGuessed(all.first(1), 1), testing::ElementsAre(wanted[0]));
  EXPECT_THAT(pager_->OnGuessed(all.first(1), 1), testing::IsEmpty());
  EXPECT_THAT(pager_->OnWanted(wanted, 1), testing::ElementsAreArray(all.subspan(1)));
  EXPECT_THAT(pager_->OnWanted(wanted, 1), testing::IsEmpty());
  const DiskPagerStats stats = pager_->stats();
  EXPECT_EQ(stats.misses, 3u);
  EXPECT_EQ(stats.hits, 5u);
  EXPECT_EQ(stats.bytes_read, 4 * layer);
  EXPECT_TRUE(Eventually(  // without being touched
      [&] { return std::all_of(wanted.begin(), wanted.end(), is_here); }));
}

TEST_F(DiskPagerTest, HearsOfBlocksThatAPoolHandsOut) {
  auto pool = BlockPool::CreateOver(pages_);
  ASSERT_TRUE(pool.ok()) << pool.status();
  EXPECT_EQ(pager_->stats().resident_bytes, 0u);
  const std::vector<BlockRef> taken = (*pool)->Reserve(3)->Take(3);
  EXPECT_EQ(pager_->stats().resident_bytes, 3 * Layout().BlockStride());
}

TEST(DiskPager, RefusesWhatCannotWork) {
  using testing::HasSubstr;
  const auto expect = [](const absl::Status& status, absl::StatusCode code, const char* text) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  expect(DiskPager::Create(Layout(), Options(4096)).status(), absl::StatusCode::kInvalidArgument,
         "the memory for pages is 4 KiB, and a layer of all 64 blocks takes 1 MiB");
  expect(DiskPager::Create(Layout(), Options(1 << 20, "./absent")).status(),
         absl::StatusCode::kNotFound, "a file for pages of KV in ./absent");
  expect(DiskPager::Create(Layout(), Options(1 << 20, "/dev/shm")).status(),
         absl::StatusCode::kFailedPrecondition, "/dev/shm is on a file system in memory");
}

TEST(DiskPager, RefusesADiskWithoutRoom) {
  struct statvfs disk {};
  ASSERT_EQ(statvfs(".", &disk), 0);
  const auto blocks = static_cast<int64_t>(disk.f_blocks) * static_cast<int64_t>(disk.f_frsize) /
                          static_cast<int64_t>(Layout().BlockStride()) +
                      1;
  const absl::Status status =
      DiskPager::Create(Layout(),
                        {.directory = ".", .blocks = blocks, .memory_bytes = uint64_t{1} << 50})
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("for a file in ., whose disk has"));
}

}  // namespace
}  // namespace penstock
