#include <algorithm>
#include <utility>

#include "base/crc32c.h"
#include "base/log/log.h"
#include "kvstore/tiers/nvme/nvme_tier.h"

// The reading part of NvmeTier.

namespace penstock {
namespace {

// Adjacent blocks are read together up to this size.
constexpr uint64_t kExtentBytes = uint64_t{1} << 20;
// This number of consecutive errors means that the disk has failed, not a block.
constexpr size_t kErrorsInARow = 4;

}  // namespace

struct NvmeTier::ReadJob {
  NvmeRead read;
  std::vector<NvmeReadState> states;
  std::vector<bool> pending;  // by block: being read
  size_t extents = 0;         // pending
  TimePoint deadline;
  bool answered = false;
};

struct NvmeTier::Extent {
  std::shared_ptr<SegmentFile> file;
  uint32_t segment = 0;
  std::vector<size_t> blocks;  // indices within the job
  std::vector<BlockRecord> records;
  // One for each block; null when it is read directly into its target. Shared, because the extent
  // is copied.
  std::vector<std::shared_ptr<DirectBuffer>> encoded;
};

void NvmeTier::Read(NvmeRead read) {
  auto job = std::make_shared<ReadJob>();
  job->read = std::move(read);
  job->states.assign(job->read.ids.size(), NvmeReadState::kMissing);
  job->pending.assign(job->read.ids.size(), false);
  job->deadline = clock_.Now() + options_.io_timeout;
  std::vector<Extent> extents = PlanReads(*job);
  job->extents = extents.size();
  reads_.push_back(job);
  if (extents.empty()) return Finish(*job);
  for (Extent& extent : extents) StartExtent(job, std::move(extent));
}

std::vector<NvmeTier::Extent> NvmeTier::PlanReads(ReadJob& job) const {
  struct Place {
    size_t block;
    NvmeIndex::Entry entry;
  };
  std::vector<Place> places;
  for (size_t i = 0; serving_ && i < job.read.ids.size(); ++i) {
    const auto entry = index_.Find(job.read.ids[i]);
    if (entry) places.push_back({.block = i, .entry = *entry});
  }
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
    return std::pair(a.entry.segment, a.entry.record.page) <
           std::pair(b.entry.segment, b.entry.record.page);
  });
  std::vector<Extent> extents;
  uint64_t bytes = 0;
  for (const Place& place : places) {
    const BlockRecord& record = place.entry.record;
    const uint64_t record_bytes = uint64_t{record.pages} * kSegmentPage;
    const bool joins =
        !extents.empty() && extents.back().segment == place.entry.segment &&
        extents.back().records.back().page + extents.back().records.back().pages == record.page &&
        bytes + record_bytes <= kExtentBytes && extents.back().blocks.size() < kIoPiecesMax;
    if (!joins) {
      extents.push_back(
          {.file = segments_.at(place.entry.segment).file, .segment = place.entry.segment});
      bytes = 0;
    }
    bytes += record_bytes;
    extents.back().blocks.push_back(place.block);
    extents.back().records.push_back(record);
    const bool decoded = record.codec != kStoredRaw && job.read.is_use;
    extents.back().encoded.push_back(
        decoded ? std::make_shared<DirectBuffer>(record.pages * kSegmentPage) : nullptr);
    job.pending[place.block] = true;
  }
  return extents;
}

void NvmeTier::StartExtent(const std::shared_ptr<ReadJob>& job, Extent extent) {
  IoRequest request{.fd = extent.file->fd.get(),
                    .offset = uint64_t{extent.records.front().page} * kSegmentPage};
  for (size_t i = 0; i < extent.blocks.size(); ++i) {
    std::byte* const target =
        extent.encoded[i] ? extent.encoded[i]->bytes().data() : job->read.targets[extent.blocks[i]];
    request.pieces.push_back({target, extent.records[i].pages * kSegmentPage});
  }
  request.done = [this, job, extent = std::move(extent)](const absl::Status& status) {
    OnRead(*job, extent, status);
  };
  io_.Submit(std::move(request));
}

void NvmeTier::OnRead(ReadJob& job, const Extent& extent, const absl::Status& status) {
  uint64_t corrupt = 0;
  for (size_t i = 0; i < extent.blocks.size(); ++i) {
    const size_t block = extent.blocks[i];
    const BlockRecord& record = extent.records[i];
    job.pending[block] = false;
    bool whole = status.ok();
    if (whole && !extent.encoded[i]) {
      whole = Crc32c({job.read.targets[block], record.pages * kSegmentPage}) == record.crc;
    } else if (whole) {
      const std::span<const std::byte> bytes = extent.encoded[i]->bytes();
      whole = Crc32c(bytes) == record.crc;
      // The target of an answered job may have another use by now.
      if (whole && !job.answered) {
        const absl::Status decoded = codec_.Decode(
            record.codec, bytes, {job.read.targets[block], block_pages_ * kSegmentPage});
        if (!decoded.ok())
          LogWarning("store_extent_damaged", "{}: {}", extent.file->path, Message(decoded));
        whole = decoded.ok();
      }
    }
    if (whole && !job.answered) job.states[block] = NvmeReadState::kWhole;
    if (whole && job.read.is_use) index_.Use(record.name.id);
    if (whole) continue;
    if (status.ok()) ++corrupt;
    // When the whole disk fails with this error, its blocks stay in the index.
    if (!status.ok() && read_errors_ + 1 >= kErrorsInARow) continue;
    const auto now = index_.Find(record.name.id);
    if (now && now->segment == extent.segment && now->record.page == record.page) {
      index_.Erase(record.name.id);
      events_.removed(record.name,
                      status.ok() ? EvictionReason::kCorrupt : EvictionReason::kUnreadable);
    }
  }
  if (corrupt > 0) {
    LogWarning("store_blocks_damaged", "{}: {} blocks have a wrong checksum; they become misses",
               extent.file->path, corrupt);
    MutexLock lock(stats_mutex_);
    stats_.corrupt += corrupt;
  }
  if (status.ok()) {
    read_errors_ = 0;
  } else {
    OnReadFailure(Annotate(status, extent.file->path));
  }
  if (--job.extents == 0) Finish(job);
}

void NvmeTier::Finish(ReadJob& job) {
  const auto mine = std::find_if(reads_.begin(), reads_.end(),
                                 [&](const auto& other) { return other.get() == &job; });
  const std::shared_ptr<ReadJob> kept = std::move(*mine);
  reads_.erase(mine);
  if (!std::exchange(kept->answered, true)) {
    const auto whole = static_cast<uint64_t>(
        std::count(kept->states.begin(), kept->states.end(), NvmeReadState::kWhole));
    if (kept->read.is_use) {
      MutexLock lock(stats_mutex_);
      stats_.tier.restores += whole;
    }
    kept->read.done(kept->states);
  }
  if (kept->read.released) kept->read.released();
}

void NvmeTier::CheckReads() {
  const TimePoint now = clock_.Now();
  bool any = false;
  const std::vector<std::shared_ptr<ReadJob>> jobs = reads_;  // A copy: `done` may start reads.
  for (const auto& job : jobs) {
    if (job->answered || now < job->deadline) continue;
    job->answered = true;
    any = true;
    uint64_t late = 0;
    for (size_t i = 0; i < job->states.size(); ++i) {
      if (!job->pending[i]) continue;
      job->states[i] = NvmeReadState::kLate;
      ++late;
    }
    {
      MutexLock lock(stats_mutex_);
      stats_.late_reads += late;
    }
    job->read.done(job->states);
  }
  if (!any) return;
  read_errors_ = kErrorsInARow;
  OnReadFailure(
      DeadlineExceeded("a read takes longer than {:.0f} ms", Milliseconds(options_.io_timeout)));
}

void NvmeTier::OnReadFailure(const absl::Status& status) {
  if (++read_errors_ < kErrorsInARow) {
    LogWarning("store_read_failed", "{}; the block is a miss", Message(status));
    MutexLock lock(stats_mutex_);
    ++stats_.read_errors;
    return;
  }
  RecordFailure(read_backoff_, "reading", status);
  Serve(false);
}

void NvmeTier::Serve(bool serving) {
  if (serving_.exchange(serving) != serving) events_.served(serving);
}

void NvmeTier::Probe() {
  if (probing_ || stopping_ || !reads_.empty()) return;
  std::optional<NvmeIndex::Entry> entry;
  for (const auto& [number, segment] : segments_) {
    const auto entries = index_.InSegment(number);
    if (!entries.empty()) entry = entries.front();
    if (entry) break;
  }
  if (!entry) {
    read_errors_ = 0;
    RecordSuccess(read_backoff_, "reading");
    return Serve(true);
  }
  probing_ = true;
  auto buffer = std::make_shared<DirectBuffer>(entry->record.pages * kSegmentPage);
  const BlockRecord record = entry->record;
  IoRequest request{.fd = segments_.at(entry->segment).file->fd.get(),
                    .offset = uint64_t{record.page} * kSegmentPage,
                    .pieces = {{buffer->bytes().data(), buffer->bytes().size()}}};
  request.done = [this, buffer,
                  file = segments_.at(entry->segment).file](const absl::Status& status) {
    probing_ = false;
    if (!status.ok()) return RecordFailure(read_backoff_, "reading", status);
    read_errors_ = 0;
    RecordSuccess(read_backoff_, "reading");
    Serve(true);
  };
  io_.Submit(std::move(request));
}

}  // namespace penstock
