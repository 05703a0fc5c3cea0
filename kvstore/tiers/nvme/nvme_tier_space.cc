#include <algorithm>
#include <utility>

#include "base/log/log.h"
#include "kvstore/tiers/nvme/nvme_tier.h"

// The part of NvmeTier that manages segments: the directory, compaction, and reclaiming space.

namespace penstock {
namespace {

// Compaction rewrites at most one in kRewriteShare of a segment's blocks, which bounds the write
// amplification by 1 / (1 - 1/4).
constexpr size_t kRewriteShare = 4;
constexpr size_t kRewritesPendingMax = 4;

}  // namespace

std::string NvmeTier::PathOf(const SegmentName& name) const {
  return options_.directory + "/" + SegmentFileName(name);
}

void NvmeTier::Start() { Claim(); }

void NvmeTier::Claim() {
  claiming_ = true;
  auto claimed = std::make_shared<absl::StatusOr<WriterClaim>>();
  io_.Run(
      [this, claimed] {
        *claimed = ClaimWriter(files_, options_.directory, options_.format.Fingerprint(),
                               options_.foreign_idle);
      },
      [this, claimed] {
        claiming_ = false;
        if (!claimed->ok()) return RecordFailure(write_backoff_, "writing", claimed->status());
        if (stopping_) return;
        // A new directory: the blocks of the old one are lost.
        while (!segments_.empty()) {
          DropSegment(segments_.begin()->first, EvictionReason::kUnreadable);
        }
        claim_ = std::make_shared<WriterClaim>(std::move(**claimed));
        claim_refreshed_ = loading_since_ = clock_.Now();
        to_load_.assign(claim_->segments.begin(), claim_->segments.end());
        next_sequence_ = to_load_.empty() ? 1 : to_load_.back().sequence + 1;
        LoadNext();
      });
}

void NvmeTier::LoadNext() {
  if (to_load_.empty()) return OnLoaded();
  const std::string path = PathOf(to_load_.front());
  auto loaded = std::make_shared<absl::StatusOr<LoadedSegment>>();
  io_.Run([this, path, loaded] { *loaded = LoadSegment(files_, path, /*write=*/true); },
          [this, path, loaded] {
            if (to_load_.empty()) return;  // The tier is stopping.
            to_load_.pop_front();
            Adopt(std::move(*loaded), path);
            LoadNext();
          });
}

void NvmeTier::Adopt(absl::StatusOr<LoadedSegment> loaded, const std::string& path) {
  const bool foreign = loaded.ok() && !(loaded->header.format == options_.format);
  if (foreign || loaded.status().code() == absl::StatusCode::kDataLoss) {
    LogWarning("store_segment_dropped", "{} is dropped: {}", path,
               foreign ? "it is of another model or KV format" : Message(loaded.status()));
    auto file = std::make_shared<SegmentFile>();
    file->path = path;
    RemoveFile(file);
    MutexLock lock(stats_mutex_);
    ++(foreign ? stats_.foreign : stats_.corrupt);
    return;
  }
  if (!loaded.ok()) {
    LogWarning("store_segment_read_failed", "{} cannot be read: {}", path,
               Message(loaded.status()));
    MutexLock lock(stats_mutex_);
    ++stats_.read_errors;
    return;
  }
  const size_t before = loaded->records.size();
  std::erase_if(loaded->records, [this](const BlockRecord& record) {
    return record.codec == kStoredRaw ? record.pages != block_pages_ : record.pages >= block_pages_;
  });
  {
    MutexLock lock(stats_mutex_);
    stats_.corrupt += loaded->damaged + (before - loaded->records.size());
    stats_.torn += loaded->torn;
  }
  auto segment = std::make_shared<OpenSegment>();
  segment->number = next_number_++;
  segment->header = loaded->header;
  segment->file = loaded->file;
  segment->next_page = loaded->end_page;
  segment->records = std::move(loaded->records);
  segments_[segment->number] = {
      .file = loaded->file, .bytes = loaded->bytes, .writing = !loaded->sealed};
  bytes_ += loaded->bytes;
  for (const BlockRecord& record : segment->records) {
    if (index_.Insert(segment->number, record)) {
      events_.stored(record.name);
    } else {
      index_.Move(segment->number, record);
    }
  }
  if (!loaded->sealed) Seal(std::move(segment));
}

void NvmeTier::OnLoaded() {
  const Duration time = clock_.Now() - loading_since_;
  RecordSuccess(write_backoff_, "writing");
  while (segments_.size() > 1 && bytes_ > options_.bytes) {
    DropSegment(segments_.begin()->first, EvictionReason::kReclaim);
  }
  LogInfo("store_opened",
          "{} has {} blocks in {} segments, found in {:.0f} ms; number {}, I/O by {}",
          options_.directory, index_.blocks(), segments_.size(), Milliseconds(time), claim_->writer,
          io_.backend());
  MutexLock lock(stats_mutex_);
  stats_.rebuild_s = Milliseconds(time) / 1e3;
}

// Reclaims space by dropping the oldest sealed segments, as a log-structured file system does.
void NvmeTier::MakeRoom() {
  auto oldest = segments_.begin();
  while (oldest != segments_.end() && bytes_ + options_.segment_bytes > options_.bytes) {
    const auto next = std::next(oldest);
    if (!oldest->second.writing) DropSegment(oldest->first, EvictionReason::kReclaim);
    codec_.OnFull();
    oldest = next;
  }
}

void NvmeTier::DropSegment(uint32_t number, EvictionReason reason) {
  const auto found = segments_.find(number);
  const std::vector<NvmeIndex::Entry> entries = index_.InSegment(number);
  for (const NvmeIndex::Entry& entry : entries) {
    index_.Erase(entry.record.name.id);
    events_.removed(entry.record.name, reason);
  }
  index_.Forget(number);
  bytes_ -= found->second.bytes;
  RemoveFile(found->second.file);
  segments_.erase(found);
  if (compaction_ && compaction_->segment == number) compaction_.reset();
  MutexLock lock(stats_mutex_);
  stats_.tier.evictions[static_cast<size_t>(reason)] += entries.size();
}

void NvmeTier::RemoveFile(const std::shared_ptr<SegmentFile>& file) {
  auto status = std::make_shared<absl::Status>();
  io_.Run([this, file, status] { *status = files_.Remove(file->path); },
          [status] {
            if (!status->ok()) LogWarning("store_file_removal_failed", "{}", Message(*status));
          });
}

void NvmeTier::Clear() {
  if (open_ != nullptr) CloseSegment();
  FailQueuedWrites();
  // Groups in flight are lost with their segments, see Acknowledge.
  while (!segments_.empty()) DropSegment(segments_.begin()->first, EvictionReason::kCleared);
}

// Starts compaction of the oldest segment, which will be dropped next: its blocks that were read
// since they were written are appended to the log again, the most used first.
void NvmeTier::BeginCompaction() {
  if (compaction_ || bytes_ + 2 * options_.segment_bytes <= options_.bytes) return;
  const auto oldest = std::find_if(segments_.begin(), segments_.end(),
                                   [](const auto& entry) { return !entry.second.writing; });
  if (oldest == segments_.end()) return;
  std::vector<NvmeIndex::Entry> entries = index_.InSegment(oldest->first);
  const size_t max = entries.size() / kRewriteShare;
  std::erase_if(entries, [](const NvmeIndex::Entry& entry) { return !entry.used; });
  std::stable_sort(entries.begin(), entries.end(),
                   [](const auto& a, const auto& b) { return a.record.uses > b.record.uses; });
  if (entries.size() > max) entries.resize(max);
  compaction_ = SegmentCompaction{.segment = oldest->first};
  for (const auto& entry : entries) compaction_->left.push_back(entry.record);
  ContinueCompaction();
}

void NvmeTier::ContinueCompaction() {
  while (compaction_ && !compaction_->left.empty() && compaction_->pending < kRewritesPendingMax &&
         serving_ && CanWrite() && write_queue_.size() + writing_ < options_.writes_max / 2) {
    const BlockRecord record = compaction_->left.back();
    compaction_->left.pop_back();
    // The block may have been rewritten since, possibly with another codec.
    const auto now = index_.Find(record.name.id);
    if (!now || now->segment != compaction_->segment || now->record.page != record.page) continue;
    ++compaction_->pending;
    const auto over = [this, segment = compaction_->segment] {
      if (compaction_ && compaction_->segment == segment) --compaction_->pending;
    };
    auto buffer = std::make_shared<DirectBuffer>(record.pages * kSegmentPage);
    NvmeRead read{.ids = {record.name.id}, .targets = {buffer->bytes().data()}};
    read.is_use = false;
    read.done = [this, record, buffer, over](const std::vector<NvmeReadState>& states) {
      // May exceed writes_max, but by no more than kRewritesPendingMax.
      const bool takes = claim_ != nullptr && !stopping_ && !write_backoff_.failing;
      if (states[0] != NvmeReadState::kWhole || !takes) return over();
      Write({.name = record.name,
             .uses = record.uses,
             .partial = record.partial,
             .bytes = buffer->bytes(),
             .done = [buffer, over](bool) { over(); },
             .rewrite = true,
             .codec = record.codec});
    };
    read.released = [buffer] {};
    Read(std::move(read));
  }
}

}  // namespace penstock
