#include "lab/micro/store.h"

#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <semaphore>

#include "kvstore/cache/cache_policy.h"
#include "kvstore/cache/prefix_cache.h"
#include "kvstore/tiers/tiered_store.h"
#include "lab/micro/store_disk.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMiB = size_t{1} << 20;
constexpr uint32_t kPrefixBlocks = 8192;

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

// A directory of the bench's own, which goes with it.
class Workplace {
 public:
  explicit Workplace(const std::string& parent) {
    std::error_code error;
    std::string pattern = (parent.empty() ? fs::temp_directory_path(error) : fs::path(parent)) /
                          "penstock_bench_XXXXXX";
    if (mkdtemp(pattern.data()) != nullptr) path_ = pattern;
  }
  ~Workplace() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

BenchRow Rate(const std::string& name, uint64_t bytes, double seconds, double raw_seconds) {
  const double value = static_cast<double>(bytes) / seconds / 1e9;
  const double limit = static_cast<double>(bytes) / raw_seconds / 1e9;
  return {.name = name, .value = value, .unit = "GB/s", .limit = limit, .fraction = value / limit};
}

// Rounds of ours and of the raw loop in turns, in seconds.
class Rounds {
 public:
  void Add(double ours, double raw) { rounds_.push_back({.ours = ours, .raw = raw}); }
  // The one with the middle fraction.
  BenchRow Middle(const std::string& name, uint64_t bytes) {
    std::sort(rounds_.begin(), rounds_.end(),
              [](const Round& a, const Round& b) { return a.raw * b.ours < b.raw * a.ours; });
    const Round& middle = rounds_[rounds_.size() / 2];
    return Rate(name, bytes, middle.ours, middle.raw);
  }

 private:
  struct Round {
    double ours = 0;
    double raw = 0;
  };
  std::vector<Round> rounds_;
};

BenchRow Goal(const std::string& name, double value, const std::string& unit, double goal) {
  return {.name = name, .value = value, .unit = unit, .limit = goal, .fraction = goal / value};
}

absl::StatusOr<std::vector<BenchRow>> MeasureDisk(const StoreBenchOptions& options,
                                                  const std::string& place) {
  const size_t block = 2 * kMiB;
  const auto blocks = static_cast<uint32_t>(options.sequential_bytes / block);
  const auto reads = static_cast<uint32_t>(options.random_bytes / block);
  Rounds writes, reads_of_both;
  for (int round = 0; round < options.rounds; ++round) {
    const std::string directory = fmt::format("{}/blocks{}", place, round);
    // A new file each time, as segments are: writing over old blocks is another thing.
    ASSIGN_OR_RETURN(auto raw, RawFile::Create(place + "/raw", options.sequential_bytes, block));
    ASSIGN_OR_RETURN(const double raw_write, raw->WriteAll(8));
    double write = 0;
    {
      ASSIGN_OR_RETURN(auto tier, TierOnDisk::Open(directory, LayoutOfBytes(block),
                                                   2 * options.sequential_bytes));
      ASSIGN_OR_RETURN(write, tier->WriteAll(blocks));
    }
    writes.Add(write, raw_write);
    ASSIGN_OR_RETURN(
        auto tier, TierOnDisk::Open(directory, LayoutOfBytes(block), 2 * options.sequential_bytes));
    ASSIGN_OR_RETURN(const double raw_read, raw->ReadRandom(reads, 8));
    ASSIGN_OR_RETURN(const double read, tier->ReadRandom(blocks, reads, 8));
    reads_of_both.Add(read, raw_read);
    tier.reset();
    fs::remove_all(directory);
  }
  return std::vector<BenchRow>{writes.Middle("spill_seq", options.sequential_bytes),
                               reads_of_both.Middle("restore_2mib", options.random_bytes)};
}

absl::StatusOr<BenchRow> MeasureSmallReads(const StoreBenchOptions& options,
                                           const std::string& place) {
  const size_t block = 128 * 1024;
  const auto blocks = static_cast<uint32_t>(options.sequential_bytes / block);
  const auto reads = static_cast<uint32_t>(options.random_bytes / block);
  const std::string directory = place + "/small";
  ASSIGN_OR_RETURN(auto raw, RawFile::Create(place + "/raw", options.sequential_bytes, block));
  RETURN_IF_ERROR(raw->WriteAll(32).status());
  {
    ASSIGN_OR_RETURN(
        auto tier, TierOnDisk::Open(directory, LayoutOfBytes(block), 2 * options.sequential_bytes));
    RETURN_IF_ERROR(tier->WriteAll(blocks).status());
  }
  ASSIGN_OR_RETURN(auto tier,
                   TierOnDisk::Open(directory, LayoutOfBytes(block), 2 * options.sequential_bytes));
  Rounds rounds;
  for (int round = 0; round < options.rounds; ++round) {
    ASSIGN_OR_RETURN(const double raw_seconds, raw->ReadRandom(reads, 16));
    ASSIGN_OR_RETURN(const double seconds, tier->ReadRandom(blocks, reads, 16));
    rounds.Add(seconds, raw_seconds);
  }
  tier.reset();
  fs::remove_all(directory);
  return rounds.Middle("restore_128kib", options.random_bytes);
}

// Spills all pages and restores them, as an engine does.
absl::StatusOr<double> DramRound(TieredStore& store, BlockPool& pool, uint32_t blocks) {
  ASSIGN_OR_RETURN(BlockCredit credit, pool.Reserve(blocks));
  std::vector<BlockRef> pages = credit.Take(blocks);
  for (const BlockRef& page : pages) {
    std::memset(pool.view().Block(page.id()), static_cast<int>(page.id()),
                pool.view().layout.BlockStride());
  }
  std::vector<BlockId> ids;
  const auto start = std::chrono::steady_clock::now();
  for (uint32_t n = 0; n < blocks; ++n) {
    ids.push_back(TierOnDisk::Name(n).id);
    if (!store.Spill({.name = TierOnDisk::Name(n), .page = pages[n].Share()})) {
      return Unavailable("bench: a spill was refused");
    }
  }
  store.WaitUntilQuiet();
  std::binary_semaphore done(0);
  size_t whole = 0;
  store.Restore(std::move(ids), std::move(pages), [&](const RestoreResult& result) {
    whole = result.whole;
    done.release();
  });
  done.acquire();
  const double seconds = Seconds(start);
  if (whole != blocks) return Unavailable("bench: {} of {} blocks came back", whole, blocks);
  store.Clear([] {});
  store.WaitUntilQuiet();
  return seconds;
}

absl::StatusOr<BenchRow> MeasureDram(const StoreBenchOptions& options) {
  const size_t block = 2 * kMiB;
  const uint32_t blocks = 128;
  ASSIGN_OR_RETURN(auto pool, BlockPool::Create(LayoutOfBytes(block), blocks));
  ASSIGN_OR_RETURN(auto raw, SlotArena::Create(block, blocks));
  ASSIGN_OR_RETURN(
      auto store,
      TieredStore::Open({.dram_bytes = blocks * block, .spills_max = blocks}, pool->view(), {}));
  store->Start();
  double ours = std::numeric_limits<double>::infinity(), copy = ours;
  for (int round = 0; round < 3 * options.rounds + 1; ++round) {
    ASSIGN_OR_RETURN(const double seconds, DramRound(*store, *pool, blocks));
    const auto start = std::chrono::steady_clock::now();
    for (uint32_t n = 0; n < blocks; ++n) {
      std::memcpy(raw->Slot(n), pool->view().Block(n), block);
    }
    for (uint32_t n = 0; n < blocks; ++n) {
      std::memcpy(pool->view().Block(n), raw->Slot(n), block);
    }
    if (round == 0) continue;  // page faults
    copy = std::min(copy, Seconds(start));
    ours = std::min(ours, seconds);
  }
  store->Stop();
  return Rate("dram_tier", 2 * blocks * block, ours, copy);
}

std::vector<BlockId> PrefixIds() {
  std::vector<BlockId> ids;
  for (uint32_t n = 0; n < kPrefixBlocks; ++n) ids.push_back(TierOnDisk::Name(n).id);
  return ids;
}

absl::StatusOr<BenchRow> MeasurePrefixCache(const StoreBenchOptions& options) {
  ASSIGN_OR_RETURN(auto pool, BlockPool::Create(LayoutOfBytes(4096), 2 * kPrefixBlocks));
  double best = std::numeric_limits<double>::infinity();
  {
    ASSIGN_OR_RETURN(auto policy, MakeCachePolicy("cost", pool->blocks_total()));
    PrefixCache cache(*pool, std::move(policy), {}, nullptr);
    const std::vector<BlockId> ids = PrefixIds();
    const BlockId root{};
    ASSIGN_OR_RETURN(BlockCredit credit, pool->Reserve(kPrefixBlocks));
    std::vector<BlockRef> pages = credit.Take(kPrefixBlocks);
    const TimePoint now{};
    cache.Insert(cache.Lookup(root, ids, now).access, root, ids, pages);
    pages.clear();
    for (int round = 0; round < 20 * options.rounds; ++round) {
      const auto start = std::chrono::steady_clock::now();
      const auto found = cache.Lookup(root, ids, now);
      best = std::min(best, Seconds(start));
      if (found.blocks.size() != ids.size()) return Internal("bench: the prefix is not found");
    }
  }
  return Goal("lookup_8192", best * 1e6, "us", 100);
}

absl::StatusOr<std::vector<BenchRow>> MeasureIndex(const StoreBenchOptions& options,
                                                   const std::string& place) {
  const uint32_t blocks = options.rebuild_blocks;
  const std::string directory = place + "/index";
  const uint64_t bytes = uint64_t{blocks} * 8192 + (uint64_t{1} << 30);
  {
    ASSIGN_OR_RETURN(auto tier, TierOnDisk::Open(directory, LayoutOfBytes(4096), bytes));
    RETURN_IF_ERROR(tier->WriteAll(blocks).status());
  }
  double rebuild = std::numeric_limits<double>::infinity(), lookup = rebuild, memory = 0;
  const std::vector<BlockId> ids = PrefixIds();
  const uint32_t prefix = std::min(blocks, kPrefixBlocks);
  for (int round = 0; round < options.rounds; ++round) {
    ASSIGN_OR_RETURN(auto tier, TierOnDisk::Open(directory, LayoutOfBytes(4096), bytes));
    const NvmeIndex& index = tier->tier().index();
    if (index.blocks() != blocks) return DataLoss("bench: {} blocks are left", index.blocks());
    rebuild = std::min(rebuild, tier->rebuild_s());
    memory = static_cast<double>(index.memory_bytes()) / blocks - sizeof(BlockName);
    for (int again = 0; again < 10; ++again) {
      const auto start = std::chrono::steady_clock::now();
      const size_t found = index.CountLeading(std::span(ids).first(prefix));
      lookup = std::min(lookup, Seconds(start));
      if (found != prefix) return Internal("bench: the prefix is not found");
    }
  }
  return std::vector<BenchRow>{Goal("bytes_per_block", memory, "B", 64),
                               Goal("lookup_8192_nvme", lookup * 1e6, "us", 100),
                               Goal("rebuild_1m", rebuild, "s", 2)};
}

}  // namespace

absl::StatusOr<std::vector<BenchRow>> RunStoreBench(
    const StoreBenchOptions& options, const std::function<void(const std::string&)>& progress) {
  const Workplace place(options.directory);
  if (place.path().empty()) {
    return Unavailable("bench: no directory can be made in \"{}\"; choose another with --dir",
                       options.directory);
  }
  progress("the DRAM tier, against memcpy");
  ASSIGN_OR_RETURN(const BenchRow dram, MeasureDram(options));
  progress("the NVMe tier, against raw reads and writes");
  ASSIGN_OR_RETURN(std::vector<BenchRow> rows, MeasureDisk(options, place.path()));
  ASSIGN_OR_RETURN(const BenchRow small, MeasureSmallReads(options, place.path()));
  rows.push_back(small);
  rows.push_back(dram);
  ASSIGN_OR_RETURN(const BenchRow lookup, MeasurePrefixCache(options));
  rows.push_back(lookup);
  progress("a million blocks, found again");
  ASSIGN_OR_RETURN(const std::vector<BenchRow> index, MeasureIndex(options, place.path()));
  rows.insert(rows.end(), index.begin(), index.end());
  return rows;
}

}  // namespace penstock
