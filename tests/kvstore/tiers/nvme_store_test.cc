// The store over real files: what is written comes back, after restarts too, and what is damaged
// does not.

#include <fcntl.h>
#include <unistd.h>

#include <fstream>
#include <random>

#include "kvstore/tiers/nvme/segment_load.h"
#include "kvstore/tiers/tiered_store.h"
#include "tests/kvstore/tiers/store_faults.h"
#include "tests/kvstore/tiers/store_fixture.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// Each test runs with both ways of I/O.
class NvmeStoreTest : public testing::TestWithParam<IoBackend> {
 protected:
  TieredStore::Options Options() const {
    TieredStore::Options options{.dram_bytes = 8 * pages_.stride()};
    options.nvme.directory = directory_.path();
    options.nvme.bytes = 4 * kMiB;
    options.nvme.segment_bytes = kMiB;
    options.nvme.format.model_fingerprint = 77;
    options.nvme.io_timeout = std::chrono::minutes(1);  // no disk is slow but where a test says so
    options.nvme.retry_first = std::chrono::milliseconds(20);
    options.nvme_uses_min = 1;
    return options;
  }
  void Open(const TieredStore::Options& options) {
    auto io = MakeIoQueue(GetParam());
    if (!io.ok()) GTEST_SKIP() << io.status();
    store_.reset();
    auto store = TieredStore::Open(options, pages_.view(), events_.Callback(),
                                   {.files = std::make_unique<FaultyFiles>(faults_),
                                    .io = std::make_unique<FaultyIo>(*std::move(io), faults_),
                                    .on_filled = [this](std::span<std::byte> slot) {
                                      if (flip_bits_) slot.front() ^= std::byte{1};
                                    }});
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    store_->Start();
    store_->WaitUntilQuiet();
  }
  void Open() { Open(Options()); }
  void Spill(uint32_t first, uint32_t count, uint32_t uses = 1) {
    for (uint32_t n = first; n < first + count; ++n) {
      while (!store_->Spill({.name = ChainName(n), .page = pages_.Filled(n), .uses = uses})) {
        store_->WaitUntilQuiet();
      }
      // One at a time: nothing is lost to a disk that is slower than this loop.
      store_->WaitUntilQuiet();
    }
  }
  // Whole blocks of [first, first + count), whose bytes are checked.
  size_t RestoredBlocks(uint32_t first, uint32_t count) {
    RestoreAnswer answer;
    store_->Restore(ChainIds(first, count), pages_.Take(count), answer.Callback());
    const RestoreResult result = answer.Wait();
    for (uint32_t i = 0; i < result.whole; ++i) {
      EXPECT_TRUE(pages_.Holds(result.pages[i], first + i)) << first + i;
    }
    return result.whole;
  }
  // How many of them can be had one by one.
  size_t Servable(uint32_t first, uint32_t count) {
    size_t blocks = 0;
    for (uint32_t n = first; n < first + count; ++n) blocks += RestoredBlocks(n, 1);
    return blocks;
  }

  void ExpectMissesAndRecovery(int error) {
    Open();
    Spill(0, 20);
    faults_->write_errno = error;
    faults_->create_errno = error;
    Spill(20, 40);
    EXPECT_GT(Servable(0, 20), 10u);  // reading goes on
    EXPECT_GT(store_->stats().nvme.write_errors, 0u);
    EXPECT_EQ(events_.tiers(), AsMap(store_->Snapshot()));
    faults_->write_errno = 0;
    faults_->create_errno = 0;
    const uint64_t before = store_->stats().nvme.tier.spills;
    uint32_t n = 100;
    ASSERT_TRUE(WaitUntil([&] {
      Spill(n++, 1);
      return store_->stats().nvme.tier.spills > before + 5;
    }));
    store_->WaitUntilQuiet();
    EXPECT_EQ(RestoredBlocks(n - 1, 1), 1u);
    Open();
    EXPECT_EQ(RestoredBlocks(n - 1, 1), 1u);
  }

  // The bytes of the only segment there is, as a crash would leave them: it has no footer yet.
  std::string OpenSegmentBytes() {
    store_->WaitUntilQuiet();
    const std::vector<std::string> segments = SegmentsIn(directory_.path());
    EXPECT_EQ(segments.size(), 1u);
    segment_ = segments.at(0);
    std::ifstream file(segment_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // Opens the store over that segment alone, with these bytes in it.
  void OpenOver(const std::string& bytes) {
    if (store_ != nullptr) store_->Stop();
    for (const std::string& path : SegmentsIn(directory_.path())) std::filesystem::remove(path);
    std::ofstream(segment_, std::ios::binary) << bytes;
    TieredStore::Options options = Options();
    options.save_time = Duration::zero();
    Open(options);
  }

  TempFolder directory_;
  std::string segment_;
  Pages pages_{128};
  EventLog events_;
  std::atomic<bool> flip_bits_ = false;  // in every block that is copied to host memory
  std::shared_ptr<DiskFaults> faults_ = std::make_shared<DiskFaults>();
  std::unique_ptr<TieredStore> store_;
};

INSTANTIATE_TEST_SUITE_P(Backends, NvmeStoreTest,
                         testing::Values(IoBackend::kUring, IoBackend::kThreads),
                         [](const auto& param) {
                           return param.param == IoBackend::kUring ? "uring" : "threads";
                         });

TEST_P(NvmeStoreTest, CooledBlocksComeBackFromTheDisk) {
  Open();
  Spill(0, 40);
  const FindResult found = store_->Find(ChainIds(0, 41));
  EXPECT_EQ(found.blocks, 40u);
  EXPECT_GT(found.nvme, 30u);
  EXPECT_EQ(RestoredBlocks(0, 41), 40u);
  EXPECT_EQ(events_.tiers(), AsMap(store_->Snapshot()));
  EXPECT_EQ(store_->stats().nvme.tier.restores, found.nvme);
  EXPECT_EQ(store_->stats().nvme.corrupt, 0u);
  EXPECT_EQ(pages_.used(), 0);
}

TEST_P(NvmeStoreTest, ARestartIsWarm) {
  Open();
  Spill(0, 40);
  Open();  // Stop saves what only DRAM had.
  EXPECT_EQ(store_->stats().dram.blocks, 0u);
  EXPECT_EQ(store_->Find(ChainIds(0, 40)).nvme, 40u);
  EXPECT_EQ(RestoredBlocks(0, 40), 40u);
  EXPECT_EQ(events_.tiers(), AsMap(store_->Snapshot()));
  EXPECT_EQ(store_->stats().nvme.torn, 0u);
}

TEST_P(NvmeStoreTest, OnlyWhatWasUsedOftenEnoughIsWritten) {
  TieredStore::Options options = Options();
  options.nvme_uses_min = 2;
  Open(options);
  Spill(0, 30, /*uses=*/1);
  EXPECT_EQ(store_->stats().nvme.tier.spills, 0u);
  Spill(30, 30, /*uses=*/2);
  EXPECT_GT(store_->stats().nvme.tier.spills, 15u);
  Open(options);
  EXPECT_EQ(Servable(0, 30), 0u);
  EXPECT_EQ(Servable(30, 30), 30u);
}

TEST_P(NvmeStoreTest, TheSizeIsKeptAndTheOldestGo) {
  Open();
  Spill(0, 1200);  // 4,096 bytes each
  const StoreStats stats = store_->stats();
  EXPECT_LE(stats.nvme.tier.bytes_used, 4 * kMiB);
  EXPECT_GT(stats.nvme.tier.blocks, 350u);
  EXPECT_GT(stats.nvme.tier.evictions[static_cast<size_t>(EvictionReason::kReclaim)], 100u);
  EXPECT_EQ(Servable(0, 10), 0u);
  EXPECT_EQ(Servable(1190, 10), 10u);
  EXPECT_EQ(events_.tiers(), AsMap(store_->Snapshot()));
  uint64_t bytes = 0;
  for (const std::string& path : SegmentsIn(directory_.path()))
    bytes += std::filesystem::file_size(path);
  EXPECT_LE(bytes, 4 * kMiB);
}

TEST_P(NvmeStoreTest, WhatIsServedGetsASecondRound) {
  Open();
  Spill(0, 20);
  for (uint32_t n = 20; n < 2000; n += 20) {
    Spill(n, 20);
    if (n % 100 == 0) {
      EXPECT_EQ(RestoredBlocks(0, 10), 10u) << n;
    }
  }
  const NvmeStats stats = store_->stats().nvme;
  EXPECT_GT(stats.bytes_written, stats.bytes_admitted);
  // One block in four at most, and a page of metadata a block, because each was written alone.
  EXPECT_LT(stats.write_amplification(), 2 * 4.0 / 3 + 0.1);
}

TEST_P(NvmeStoreTest, ClearRemovesTheFiles) {
  Open();
  Spill(0, 40);
  store_->Clear([] {});
  store_->WaitUntilQuiet();
  EXPECT_EQ(Servable(0, 40), 0u);
  EXPECT_TRUE(events_.tiers().empty());
  store_->Stop();
  EXPECT_TRUE(SegmentsIn(directory_.path()).empty());
}

TEST_P(NvmeStoreTest, WorkersShareADirectory) {
  Open();
  Spill(0, 20);
  Pages pages(64);
  EventLog events;
  auto second = TieredStore::Open(Options(), pages.view(), events.Callback());
  ASSERT_TRUE(second.ok()) << second.status();
  (*second)->Start();
  (*second)->WaitUntilQuiet();
  EXPECT_EQ((*second)->Find(ChainIds(0, 1)).blocks, 0u);
  for (uint32_t n = 100; n < 120; ++n) {
    ASSERT_TRUE((*second)->Spill({.name = ChainName(n), .page = pages.Filled(n)}));
    (*second)->WaitUntilQuiet();
  }
  second->reset();
  Spill(20, 20);
  EXPECT_EQ(Servable(0, 40), 40u);
  EXPECT_EQ(Servable(100, 20), 0u);
  // The second's blocks are there for whoever has its number next.
  auto third = TieredStore::Open(Options(), pages.view(), {});
  (*third)->Start();
  (*third)->WaitUntilQuiet();
  EXPECT_EQ((*third)->Find(ChainIds(100, 20)).blocks, 20u);
}

TEST_P(NvmeStoreTest, AnotherFormatIsNotTouchedUntilItIsForgotten) {
  Open();
  Spill(0, 20);
  TieredStore::Options other = Options();
  other.nvme.format.model_fingerprint = 78;
  Open(other);
  EXPECT_EQ(Servable(0, 20), 0u);
  EXPECT_EQ(store_->stats().nvme.foreign, 0u);
  Open();  // The first number is still there.
  EXPECT_EQ(Servable(0, 20), 20u);
  other.nvme.format.model_fingerprint = 79;
  other.nvme.foreign_idle = Duration::zero();
  Open(other);
  EXPECT_GT(store_->stats().nvme.foreign, 0u);
  EXPECT_EQ(Servable(0, 20), 0u);
}

TEST_P(NvmeStoreTest, AFullDiskMakesMissesAndRecovers) { ExpectMissesAndRecovery(ENOSPC); }

TEST_P(NvmeStoreTest, AQuotaThatIsUsedUpMakesMissesAndRecovers) { ExpectMissesAndRecovery(EDQUOT); }

TEST_P(NvmeStoreTest, ALimitOfFileSizesMakesMissesAndRecovers) { ExpectMissesAndRecovery(EFBIG); }

// Each block is verified when it is read, so nothing depends on what the failed call has done.
TEST_P(NvmeStoreTest, ASegmentThatCannotBeSyncedIsServedAndReadAgain) {
  faults_->sync_errno = EIO;
  Open();
  Spill(0, 200);  // more than a segment
  ASSERT_TRUE(WaitUntil([&] { return faults_->syncs_failed > 0; }));
  EXPECT_EQ(Servable(0, 200), 200u);
  EXPECT_TRUE(WaitUntil([&] { return store_->stats().nvme.writing; }));  // a gauge, set by ticks
  Open();
  EXPECT_EQ(store_->stats().nvme.corrupt, 0u);
  EXPECT_EQ(Servable(0, 200), 200u);
}

TEST_P(NvmeStoreTest, ADiskThatCannotReadMakesMissesAndRecovers) {
  Open();
  Spill(0, 40);
  faults_->read_errno = EIO;
  size_t served = 0;
  for (uint32_t n = 0; n < 20; ++n) served += RestoredBlocks(n, 1);
  EXPECT_EQ(served, 0u);
  EXPECT_TRUE(WaitUntil([&] { return !store_->stats().nvme.serving; }));
  EXPECT_EQ(store_->Find(ChainIds(10, 1)).blocks, 0u);  // not announced while it cannot be had
  store_->WaitUntilQuiet();
  EXPECT_EQ(events_.tiers(), AsMap(store_->Snapshot()));
  faults_->read_errno = 0;
  ASSERT_TRUE(WaitUntil([&] { return store_->stats().nvme.serving; }));
  store_->WaitUntilQuiet();
  EXPECT_GE(Servable(0, 40),
            37u);  // but for the first few, of which nobody knew that it was the disk
  store_->WaitUntilQuiet();
  EXPECT_EQ(events_.tiers(), AsMap(store_->Snapshot()));
}

TEST_P(NvmeStoreTest, ASlowDiskAnswersInTimeAndKeepsItsPages) {
  Open();
  Spill(0, 40);
  // From here on, all is on the disk, and a read may take that long and no longer.
  TieredStore::Options options = Options();
  options.nvme.io_timeout = std::chrono::milliseconds(200);
  Open(options);
  ASSERT_TRUE(WaitUntil([&] { return store_->stats().nvme.serving; }));
  faults_->hang_reads = true;
  RestoreAnswer answer;
  store_->Restore(ChainIds(0, 8), pages_.Take(8), answer.Callback());
  {
    const RestoreResult result = answer.Wait();
    EXPECT_EQ(result.whole, 0u);
    ASSERT_EQ(result.pages.size(), 8u);
    EXPECT_FALSE(result.pages[0]);
  }
  EXPECT_GT(pages_.used(), 0);          // the disk may still write into them
  EXPECT_EQ(RestoredBlocks(8, 4), 0u);  // at once: it is known to be slow
  faults_->hang_reads = false;
  ASSERT_TRUE(WaitUntil([&] { return pages_.used() == 0 && store_->stats().nvme.serving; }));
  // A read of a busy machine may take 200 ms, too.
  EXPECT_TRUE(WaitUntil([&] { return Servable(0, 40) == 40; }));
}

TEST_P(NvmeStoreTest, AReadOnlyDirectoryIsNoErrorAndRecovers) {
  faults_->create_errno = EROFS;
  Open();
  EXPECT_FALSE(store_->stats().nvme.writing);
  Spill(0, 20);
  EXPECT_EQ(store_->stats().dram.blocks, 8u);
  faults_->create_errno = 0;
  ASSERT_TRUE(WaitUntil([&] { return store_->stats().nvme.writing; }));
  Spill(20, 20);
  EXPECT_EQ(Servable(24, 16), 16u);
}

TEST_P(NvmeStoreTest, AVanishedDirectoryMakesMissesAndRecovers) {
  TieredStore::Options options = Options();
  options.nvme.directory = directory_.path() + "/store";
  Open(options);
  Spill(0, 40);
  std::filesystem::remove_all(options.nvme.directory);
  Spill(100, 600);  // into a new segment, sooner or later
  uint32_t n = 1000;
  ASSERT_TRUE(WaitUntil([&] {
    Spill(n++, 1);
    return std::filesystem::exists(options.nvme.directory) && store_->stats().nvme.writing;
  }));
  Spill(2000, 20);
  EXPECT_EQ(Servable(2000, 20), 20u);
  EXPECT_EQ(Servable(0, 20), 0u);
  EXPECT_EQ(events_.tiers(), AsMap(store_->Snapshot()));
}

// A write is in flight while the worker claims the directory again, which drops what it had there.
TEST_P(NvmeStoreTest, AWriteThatLandsAfterItsSegmentWasDroppedIsAMiss) {
  TieredStore::Options options = Options();
  options.dram_bytes = 32 * pages_.stride();
  Open(options);
  uint32_t n = 0;
  const auto spill = [&] {
    ASSERT_TRUE(store_->Spill({.name = ChainName(n), .page = pages_.Filled(n), .uses = 1}));
    ++n;
  };
  // Each spill beyond the first 28 has one block written.
  while (n < 36) spill();
  store_->WaitUntilQuiet();
  ASSERT_GT(store_->stats().nvme.tier.blocks, 0u);
  faults_->hang_writes = true;
  spill();
  ASSERT_TRUE(WaitUntil([&] { return faults_->writes_hanging == 1; }));
  // The next write fails, so the one after it needs a new segment, whose claim is gone.
  faults_->write_errno = EIO;
  spill();
  ASSERT_TRUE(WaitUntil([&] { return faults_->writes_failed == 1; }));
  faults_->write_errno = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory_.path())) {
    if (entry.path().extension() == ".lock") std::filesystem::remove(entry.path());
  }
  spill();
  ASSERT_TRUE(WaitUntil([&] { return store_->stats().nvme.write_errors > 0; }));
  ASSERT_TRUE(WaitUntil([&] { return store_->stats().nvme.writing; })) << "claimed again";
  faults_->hang_writes = false;
  ASSERT_TRUE(WaitUntil([&] { return faults_->writes_hanging == 0; }));
  store_->WaitUntilQuiet();
  const size_t servable = Servable(0, n);
  store_->WaitUntilQuiet();
  EXPECT_EQ(servable, store_->Snapshot().size());
  EXPECT_EQ(events_.tiers(), AsMap(store_->Snapshot()));
}

TEST_P(NvmeStoreTest, ABlockWithAFlippedBitInMemoryIsNotWritten) {
  flip_bits_ = true;
  Open();
  Spill(0, 40);
  EXPECT_EQ(store_->stats().nvme.tier.spills, 0u);
  EXPECT_GT(store_->stats().dram_corrupt, 30u);
  EXPECT_EQ(Servable(0, 40), 0u);
  store_->WaitUntilQuiet();
  EXPECT_EQ(events_.tiers(), AsMap(store_->Snapshot()));
}

TEST_P(NvmeStoreTest, ATornTailIsDropped) {
  Open();
  Spill(0, 40);
  store_->Stop();
  const std::vector<std::string> segments = SegmentsIn(directory_.path());
  ASSERT_EQ(segments.size(), 1u);
  // As a crash in the middle of the last blocks leaves it: no footer, and payloads not all written.
  StoreFiles files;
  auto segment = LoadSegment(files, segments[0], /*write=*/true);
  ASSERT_TRUE(segment.ok() && segment->sealed);
  ASSERT_EQ(segment->records.size(), 40u);
  const BlockRecord last = segment->records.back();
  std::filesystem::resize_file(segments[0], uint64_t{last.page} * kSegmentPage);
  std::filesystem::resize_file(segments[0], kMiB);
  Open();
  EXPECT_EQ(store_->stats().nvme.torn, 1u);
  EXPECT_EQ(store_->stats().nvme.tier.blocks, 39u);
  EXPECT_EQ(Servable(0, 40), 39u);
}

TEST_P(NvmeStoreTest, AFooterWithoutTheEndOfItsFileIsNoDamage) {
  Open();
  Spill(0, 40);
  store_->Stop();
  const std::vector<std::string> segments = SegmentsIn(directory_.path());
  ASSERT_EQ(segments.size(), 1u);
  std::filesystem::resize_file(segments[0], kMiB);
  Open();
  EXPECT_EQ(store_->stats().nvme.corrupt, 0u);
  EXPECT_EQ(store_->stats().nvme.torn, 0u);
  EXPECT_EQ(Servable(0, 40), 40u);
}

// One flipped bit: the block it hits is a miss and counted; no other byte is ever wrong.
TEST_P(NvmeStoreTest, AFlippedBitIsAMissAndACounter) {
  Open();
  Spill(0, 24);
  store_->Stop();
  const std::vector<std::string> segments = SegmentsIn(directory_.path());
  ASSERT_EQ(segments.size(), 1u);
  StoreFiles files;
  const auto intact = LoadSegment(files, segments[0], /*write=*/false);
  ASSERT_TRUE(intact.ok());
  const uint64_t size = std::filesystem::file_size(segments[0]);
  const auto flip = [&](uint64_t bit) {
    std::fstream file(segments[0], std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(bit / 8));
    char byte = 0;
    file.get(byte);
    byte = static_cast<char>(byte ^ (1 << (bit % 8)));
    file.seekp(static_cast<std::streamoff>(bit / 8));
    file.put(byte);
  };
  std::filesystem::create_directory(directory_.path() + "/kept");
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    const std::string kept = directory_.path() + "/kept/segment";
    std::filesystem::copy_file(segments[0], kept,
                               std::filesystem::copy_options::overwrite_existing);
    const uint64_t bit = (uint64_t{random()} << 8 ^ random()) % (size * 8);
    flip(bit);
    const uint64_t page = bit / 8 / kSegmentPage;
    const bool in_payload =
        std::any_of(intact->records.begin(), intact->records.end(), [&](const auto& record) {
          return page >= record.page && page < record.page + record.pages;
        });
    TieredStore::Options options = Options();
    options.save_time = Duration::zero();
    Open(options);
    const size_t served = Servable(0, 24);  // checks the bytes
    const uint64_t counted = store_->stats().nvme.corrupt;
    if (in_payload) {
      EXPECT_EQ(served, 23u) << "bit " << bit;
      EXPECT_EQ(counted, 1u) << "bit " << bit;
    } else {
      EXPECT_TRUE(served == 24 || counted > 0) << "bit " << bit << ", served " << served;
    }
    store_->Stop();
    for (const std::string& path : SegmentsIn(directory_.path())) std::filesystem::remove(path);
    std::filesystem::copy_file(kept, segments[0]);
  }
}

// A disk that reads or writes at a wrong address gives whole blocks, with right checksums of their
// own, in the place of others.
TEST_P(NvmeStoreTest, BlocksInThePlaceOfOthersAreMisses) {
  constexpr size_t kGroup = 2 * kSegmentPage;  // each block was written alone, behind its header
  const auto swap = [](std::string& bytes, size_t a, size_t b, size_t count) {
    std::swap_ranges(bytes.begin() + static_cast<std::ptrdiff_t>(a),
                     bytes.begin() + static_cast<std::ptrdiff_t>(a + count),
                     bytes.begin() + static_cast<std::ptrdiff_t>(b));
  };
  Open();
  Spill(0, 40);
  const std::string intact = OpenSegmentBytes();
  const size_t first = kSegmentPage;
  OpenOver(intact);
  const size_t whole = Servable(0, 40);
  ASSERT_GT(whole, 20u);  // the rest was in host memory only
  // Two payloads.
  std::string bytes = intact;
  swap(bytes, first + 3 * kGroup + kSegmentPage, first + 5 * kGroup + kSegmentPage, kSegmentPage);
  OpenOver(bytes);
  EXPECT_EQ(Servable(0, 40), whole - 2);
  EXPECT_EQ(store_->stats().nvme.corrupt, 2u);
  // Two headers with their payloads: the segment is read up to there.
  bytes = intact;
  swap(bytes, first + 3 * kGroup, first + 5 * kGroup, kGroup);
  OpenOver(bytes);
  EXPECT_EQ(Servable(0, 40), 3u);
  EXPECT_EQ(store_->stats().nvme.corrupt, 1u);
}

// A crash leaves any part of what was written, in units of a disk's sectors.
TEST_P(NvmeStoreTest, AnySectorsMayBeMissingAfterACrash) {
  constexpr size_t kSector = 512;
  constexpr size_t kGroup = 2 * kSegmentPage;
  constexpr size_t kBlocks = 4;
  Open();
  Spill(0, 12);  // of which host memory holds the last 8
  const std::string intact = OpenSegmentBytes();
  const size_t end = kSegmentPage + kBlocks * kGroup;
  // All up to some sector.
  for (size_t cut = kSegmentPage; cut <= end; cut += kSector) {
    OpenOver(intact.substr(0, cut) + std::string(intact.size() - cut, '\0'));
    const size_t into = (cut - kSegmentPage) % kGroup;
    EXPECT_EQ(Servable(0, kBlocks), (cut - kSegmentPage) / kGroup) << cut;
    EXPECT_EQ(store_->stats().nvme.torn, into == 0 ? 0u : 1u) << cut;
  }
  // Any sectors.
  std::mt19937 random(5);
  uint64_t counted = 0;
  size_t served = 0;
  for (int round = 0; round < 60; ++round) {
    std::string bytes = intact;
    for (size_t at = round % 2 == 0 ? kSegmentPage : 0; at < end; at += kSector) {
      if (random() % 60 <= static_cast<uint32_t>(round)) {
        std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(at), kSector, '\0');
      }
    }
    OpenOver(bytes);
    served += Servable(0, kBlocks);  // and each has its own bytes
    counted += store_->stats().nvme.torn + store_->stats().nvme.corrupt;
  }
  EXPECT_GT(served, 0u);
  EXPECT_GT(counted, 30u);
}

TEST_P(NvmeStoreTest, RandomCallsGiveRightBytes) {
  Open();
  std::mt19937 random(11);
  for (int i = 0; i < 4000; ++i) {
    const uint32_t n = random() % 400;
    switch (random() % 8) {
      case 0:
        RestoredBlocks(n, 1 + random() % 16);
        break;
      case 1:
        store_->Touch(ChainIds(n, 3));
        break;
      case 2:
        if (random() % 200 == 0) store_->Clear([] {});
        break;
      default:
        store_->Spill({.name = ChainName(n), .page = pages_.Filled(n)});
    }
    if (i % 1000 == 999) Open();
  }
  store_->WaitUntilQuiet();
  EXPECT_EQ(events_.tiers(), AsMap(store_->Snapshot()));
  EXPECT_EQ(store_->stats().nvme.corrupt, 0u);
  EXPECT_EQ(pages_.used(), 0);
}

TEST(NvmeOptionsTest, SaysWhatDoesNotFit) {
  Pages pages(4);
  TieredStore::Options options{.dram_bytes = 8 * pages.stride()};
  options.nvme.directory = "/tmp";
  options.nvme.bytes = 4096;
  const auto small = TieredStore::Open(options, pages.view(), {});
  EXPECT_EQ(small.status().code(), absl::StatusCode::kInvalidArgument) << small.status();
  options.nvme.bytes = 64 * kMiB;
  options.dram_bytes = 0;
  const auto no_dram = TieredStore::Open(options, pages.view(), {});
  EXPECT_EQ(no_dram.status().code(), absl::StatusCode::kInvalidArgument) << no_dram.status();
}

}  // namespace
}  // namespace penstock
