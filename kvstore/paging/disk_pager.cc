#include "kvstore/paging/disk_pager.h"

#include <algorithm>
#include <chrono>

#include "base/bytes.h"
#include "base/check.h"
#include "base/thread_name.h"

namespace penstock {
namespace {

// Room is made for a while at once, so that the disk gets many writes at a time.
constexpr uint64_t kRoomShare = 32;  // one part of this many of the memory
// The blocks whose pages leave together.
constexpr int64_t kBlocksAtOnce = 64;
// Counts are corrected at this pace: all blocks of a TiB, of 2 MiB each, in ten minutes.
constexpr auto kCountEvery = std::chrono::seconds(1);
constexpr int64_t kCountBlocks = 1024;

}  // namespace

absl::StatusOr<std::unique_ptr<DiskPager>> DiskPager::Create(const KvLayout& layout,
                                                             Options options) {
  const size_t layer = static_cast<size_t>(options.blocks) * layout.LayerBytes();
  if (options.memory_bytes < layer) {
    return InvalidArgument(
        "the memory for pages is {}, and a layer of all {} blocks takes {}; give at least that",
        FormatBytes(options.memory_bytes), options.blocks, FormatBytes(layer));
  }
  ASSIGN_OR_RETURN(auto file,
                   PageFile::Create(options.directory,
                                    static_cast<size_t>(options.blocks) * layout.BlockStride()));
  return std::unique_ptr<DiskPager>(new DiskPager(layout, options, std::move(file)));
}

DiskPager::DiskPager(const KvLayout& layout, const Options& options, std::unique_ptr<PageFile> file)
    : layout_(layout),
      memory_bytes_(options.memory_bytes),
      file_(std::move(file)),
      residency_(layout, options.blocks),
      thread_([this] { Run(); }) {}

DiskPager::~DiskPager() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
  }
  work_.NotifyAll();
  thread_.join();
}

PagedKv DiskPager::pages() {
  return {.arena = file_->data(), .blocks = residency_.blocks(), .layout = layout_, .pager = this};
}

void DiskPager::OnTaken(uint32_t block) {
  residency_.Take(block);
  AskIfOver();
}

std::vector<uint32_t> DiskPager::OnWanted(std::span<const uint32_t> blocks, int32_t layer) {
  std::vector<uint32_t> missing = ReadMissing(blocks, layer, &PageResidency::Use);
  misses_.fetch_add(missing.size(), std::memory_order_relaxed);
  hits_.fetch_add(blocks.size() - missing.size(), std::memory_order_relaxed);
  return missing;
}

std::vector<uint32_t> DiskPager::OnGuessed(std::span<const uint32_t> blocks, int32_t layer) {
  return ReadMissing(blocks, layer, &PageResidency::Expect);
}

// Starts to read the blocks of which `use` says that they were not in memory, and returns them.
std::vector<uint32_t> DiskPager::ReadMissing(std::span<const uint32_t> blocks, int32_t layer,
                                             bool (PageResidency::*use)(uint32_t, int32_t)) {
  std::vector<uint32_t> missing;
  std::vector<ByteRange> ranges;
  for (const uint32_t block : blocks) {
    if (!(residency_.*use)(block, layer)) continue;
    missing.push_back(block);
    ranges.push_back(residency_.RangeOf(block, layer));
  }
  if (missing.empty()) return missing;
  file_->ReadAhead(ranges);
  bytes_read_.fetch_add(missing.size() * layout_.LayerBytes(), std::memory_order_relaxed);
  AskIfOver();
  return missing;
}

void DiskPager::AskIfOver() {
  if (!IsOver() || asked_.exchange(true)) return;
  MutexLock lock(mutex_);
  work_.NotifyAll();
}

void DiskPager::Run() {
  NameThisThread("kv-pager");
  while (WaitForWork()) {
    CountSome();
    if (IsOver()) MakeRoom();
  }
}

// False when the pager closes.
bool DiskPager::WaitForWork() {
  MutexLock lock(mutex_);
  if (!asked_ && !closed_) work_.WaitFor(mutex_, kCountEvery);
  asked_ = false;
  return !closed_;
}

void DiskPager::MakeRoom() {
  const auto target = static_cast<int64_t>(memory_bytes_ - memory_bytes_ / kRoomShare);
  // As many passes as a unit can stay.
  int64_t passes = PageResidency::kMax * residency_.blocks();
  while (passes > 0 && residency_.bytes() > target && !closed_) {
    passes -= PassSome(residency_.bytes() - target);
  }
}

// The hand passes the next blocks, and what may leave leaves, until it is `bytes` or more. Returns
// the number of blocks.
int64_t DiskPager::PassSome(int64_t bytes) {
  const int64_t most = std::min(kBlocksAtOnce, residency_.blocks());
  leave_.clear();
  int64_t passed = 0, leaving = 0;
  for (; passed < most && leaving < bytes; ++passed) {
    const uint32_t block = NextBlock(hand_);
    if (residency_.HasAny(block)) leaving += residency_.Pass(block, leave_);
  }
  const absl::Status dropped = file_->Drop(leave_);
  PENSTOCK_CHECK_EQ(dropped.message(), "");  // ends the process, and says why
  bytes_dropped_ += static_cast<uint64_t>(leaving);
  return passed;
}

// Corrects the counts of some blocks. Their pages may have been read by code that tells nobody, and
// pages that were used while they left are still there.
void DiskPager::CountSome() {
  const auto now = std::chrono::steady_clock::now();
  if (now - last_count_ < kCountEvery) return;
  last_count_ = now;
  for (int64_t i = 0; i < std::min(kCountBlocks, residency_.blocks()); ++i) {
    const uint32_t block = NextBlock(counted_);
    file_->Look(residency_.RangeOf(block), in_memory_);
    residency_.Count(block, in_memory_);
  }
}

uint32_t DiskPager::NextBlock(uint32_t& hand) const {
  const uint32_t block = hand++;
  if (hand == residency_.blocks()) hand = 0;
  return block;
}

DiskPagerStats DiskPager::stats() const {
  return {.file_bytes = file_->bytes(),
          .memory_bytes = memory_bytes_,
          .resident_bytes = static_cast<uint64_t>(std::max<int64_t>(0, residency_.bytes())),
          .hits = hits_,
          .misses = misses_,
          .bytes_read = bytes_read_,
          .bytes_dropped = bytes_dropped_};
}

}  // namespace penstock
