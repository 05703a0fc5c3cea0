#include "kvstore/tiers/nvme/nvme_tier.h"

#include <algorithm>
#include <random>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/log/log.h"

// The writing part of NvmeTier: from the write queue through groups to sealed segments.

namespace penstock {
namespace {

constexpr uint64_t kGroupBytes = uint64_t{8} << 20;
constexpr uint64_t kSegmentBytesMax = uint64_t{8} << 30;
constexpr uint64_t kSegmentBytesMin = uint64_t{16} << 20;
constexpr uint64_t kSegmentsWanted = 64;
constexpr uint64_t kSegmentsMin = 4;
constexpr uint64_t kBlocksMin = 2;  // for each segment

// The size of a segment whose `blocks` blocks are written in groups of one.
uint64_t BytesFor(uint64_t blocks, uint64_t block_pages) {
  const uint64_t footer = FooterBytes(blocks) / kSegmentPage + 1;
  return (1 + blocks * (1 + block_pages) + footer) * kSegmentPage;
}

absl::StatusOr<uint64_t> ChooseSegmentBytes(const NvmeOptions& options, uint64_t block_pages) {
  const uint64_t min = BytesFor(kBlocksMin, block_pages);
  uint64_t bytes = options.segment_bytes;
  if (bytes == 0) {
    bytes = std::clamp(options.bytes / kSegmentsWanted, kSegmentBytesMin, kSegmentBytesMax);
    bytes = std::max(std::min(bytes, options.bytes / kSegmentsMin), min);
  }
  bytes = bytes / kSegmentPage * kSegmentPage;
  if (bytes < min || options.bytes < kSegmentsMin * bytes) {
    return InvalidArgument("nvme_size is {}; blocks of {} need at least {}",
                           FormatBytes(options.bytes), FormatBytes(block_pages * kSegmentPage),
                           FormatBytes(kSegmentsMin * min));
  }
  return bytes;
}

uint64_t RandomNonce() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace

absl::StatusOr<std::unique_ptr<NvmeTier>> NvmeTier::Create(NvmeOptions options, StoreFiles& files,
                                                           IoQueue& io, const Clock& clock,
                                                           NvmeEvents events) {
  const uint64_t block_pages = options.format.layout.BlockStride() / kSegmentPage;
  ASSIGN_OR_RETURN(options.segment_bytes, ChooseSegmentBytes(options, block_pages));
  return std::unique_ptr<NvmeTier>(
      new NvmeTier(std::move(options), files, io, clock, std::move(events)));
}

NvmeTier::NvmeTier(NvmeOptions options, StoreFiles& files, IoQueue& io, const Clock& clock,
                   NvmeEvents events)
    : options_(std::move(options)),
      block_pages_(static_cast<uint32_t>(options_.format.layout.BlockStride() / kSegmentPage)),
      files_(files),
      io_(io),
      clock_(clock),
      events_(std::move(events)),
      codec_({.layout = options_.format.layout,
              .codec = options_.codec,
              .choices = options_.codec_choices}) {}

NvmeTier::~NvmeTier() { PENSTOCK_CHECK_EQ(io_.open(), 0u); }

bool NvmeTier::CanWrite() const {
  if (!claim_ || stopping_ || !to_load_.empty()) return false;
  if (write_backoff_.failing && clock_.Now() < write_backoff_.retry_at) return false;
  return write_queue_.size() + writing_ < options_.writes_max;
}

void NvmeTier::Write(NvmeWrite write) {
  ExtentCodec::Stored stored{.codec = write.codec, .bytes = write.bytes};
  if (!write.rewrite) {
    PENSTOCK_CHECK_EQ(write.bytes.size(), block_pages_ * kSegmentPage);
    stored = codec_.Encode(write.bytes);
    MutexLock lock(stats_mutex_);
    stats_.bytes_admitted += stored.bytes.size();
  }
  write_queue_.push_back({.write = std::move(write), .stored = std::move(stored)});
  Pump();
}

void NvmeTier::Pump() {
  while (!write_queue_.empty() && groups_.size() < kGroupsInFlightMax) {
    if (open_ == nullptr) return BeginSegment();
    const size_t count = Fitting();
    if (count == 0) {
      CloseSegment();
    } else {
      SendGroup(count);
    }
  }
}

void NvmeTier::BeginSegment() {
  if (opening_ || !claim_ || stopping_) return;
  opening_ = true;
  MakeRoom();
  struct Making {
    std::shared_ptr<OpenSegment> segment;
    absl::Status status;
  };
  auto making = std::make_shared<Making>();
  making->segment = std::make_shared<OpenSegment>();
  making->segment->number = next_number_++;
  making->segment->header = {.format = options_.format,
                             .nonce = RandomNonce(),
                             .sequence = next_sequence_++,
                             .writer = claim_->writer};
  const std::string path =
      PathOf({.writer = claim_->writer, .sequence = making->segment->header.sequence});
  const auto create = [this, making, path, claim = claim_]() -> absl::Status {
    RETURN_IF_ERROR(CheckClaim(*claim, options_.directory));
    ASSIGN_OR_RETURN(OwnedFd fd, files_.Create(path, options_.segment_bytes));
    DirectBuffer page(kSegmentPage);
    EncodeSegmentHeader(making->segment->header, page.bytes().first<kSegmentPage>());
    const absl::Status written = files_.Write(fd.get(), 0, page.bytes());
    if (!written.ok()) files_.Remove(path).IgnoreError();
    RETURN_IF_ERROR(written);
    making->segment->file =
        std::make_shared<SegmentFile>(SegmentFile{.path = path, .fd = std::move(fd)});
    return absl::OkStatus();
  };
  const auto done = [this, making] {
    opening_ = false;
    if (!making->status.ok()) {
      if (making->status.code() == absl::StatusCode::kNotFound) claim_ = nullptr;
      RecordFailure(write_backoff_, "writing", making->status);
      return FailQueuedWrites();
    }
    segments_[making->segment->number] = {
        .file = making->segment->file, .bytes = options_.segment_bytes, .writing = true};
    bytes_ += options_.segment_bytes;
    open_ = std::move(making->segment);
    if (stopping_) return CloseSegment();
    BeginCompaction();
    Pump();
  };
  io_.Run([making, create] { making->status = create(); }, done);
}

size_t NvmeTier::Fitting() const {
  if (open_->broken) return 0;
  const uint64_t pages = options_.segment_bytes / kSegmentPage;
  // The footer will also contain the records of pending groups.
  size_t records = open_->records.size();
  for (const auto& group : groups_) {
    if (group->segment == open_) records += group->writes.size();
  }
  size_t count = 0;
  uint64_t end = open_->next_page + 1;
  for (const Waiting& next : write_queue_) {
    const uint64_t group_pages = end + next.pages() - open_->next_page - 1;
    const bool fits =
        end + next.pages() + FooterBytes(records + count + 1) / kSegmentPage + 1 <= pages;
    const bool small = count == 0 || group_pages * kSegmentPage <= kGroupBytes;
    if (count == kGroupRecordsMax || !fits || !small) break;
    end += next.pages();
    ++count;
  }
  return count;
}

void NvmeTier::SendGroup(size_t count) {
  auto group = std::make_unique<Group>();
  group->segment = open_;
  group->sent = clock_.Now();
  group->header = {.nonce = open_->header.nonce,
                   .format = options_.format.Fingerprint(),
                   .page = open_->next_page,
                   .pages = 1};
  IoRequest request{.write = true,
                    .fd = open_->file->fd.get(),
                    .offset = uint64_t{open_->next_page} * kSegmentPage};
  request.pieces.push_back({group->page.bytes().data(), kSegmentPage});
  for (size_t i = 0; i < count; ++i) {
    const auto& [write, stored] = group->writes.emplace_back(std::move(write_queue_.front()));
    write_queue_.pop_front();
    const auto pages = static_cast<uint32_t>(stored.bytes.size() / kSegmentPage);
    group->header.records.push_back(
        {.name = write.name,
         .page = open_->next_page + group->header.pages,
         .pages = pages,
         .crc = Crc32c(stored.bytes),
         .codec = stored.codec,
         .uses = static_cast<uint8_t>(std::min<uint32_t>(write.uses, 255)),
         .partial = write.partial});
    group->header.pages += pages;
    request.pieces.push_back({const_cast<std::byte*>(stored.bytes.data()), stored.bytes.size()});
  }
  EncodeGroupHeader(group->header, group->page.bytes().first<kSegmentPage>());
  open_->next_page += group->header.pages;
  ++open_->groups;
  writing_ += count;
  request.done = [this, raw = group.get()](const absl::Status& status) { OnLanded(*raw, status); };
  groups_.push_back(std::move(group));
  codec_.OnWrite(clock_.Now());
  io_.Submit(std::move(request));
}

void NvmeTier::OnLanded(Group& group, const absl::Status& status) {
  codec_.OnWritten(clock_.Now(), status.ok() ? size_t{group.header.pages} * kSegmentPage : 0);
  group.landed = true;
  group.status = status;
  if (!status.ok()) group.segment->broken = true;
  while (!groups_.empty() && groups_.front()->landed) {
    const std::unique_ptr<Group> first = std::move(groups_.front());
    groups_.pop_front();
    writing_ -= first->writes.size();
    Acknowledge(*first);
  }
  Pump();
  ContinueCompaction();
}

void NvmeTier::Acknowledge(Group& group) {
  OpenSegment& segment = *group.segment;
  // The segment may have been dropped while the group was in flight: by Clear, or for a new
  // directory. The index names blocks of segments that exist, and no others.
  if (!segments_.contains(segment.number)) segment.hole = true;
  if (!group.status.ok()) {
    segment.hole = true;
    RecordFailure(write_backoff_, "writing", group.status);
  } else {
    RecordSuccess(write_backoff_, "writing");
    MutexLock lock(stats_mutex_);
    stats_.bytes_written += uint64_t{group.header.pages} * kSegmentPage;
    if (!segment.hole) stats_.tier.spills += group.writes.size();
  }
  --segment.groups;
  for (size_t i = 0; i < group.writes.size(); ++i) {
    if (segment.hole) {
      group.writes[i].write.done(false);
      continue;
    }
    const BlockRecord& record = group.header.records[i];
    segment.records.push_back(record);
    if (index_.Insert(segment.number, record)) {
      events_.stored(record.name);
    } else {
      index_.Move(segment.number, record);
    }
    group.writes[i].write.done(true);
  }
  if (segment.broken && open_ == group.segment) CloseSegment();
  if (segment.full && segment.groups == 0) Seal(group.segment);
}

void NvmeTier::CloseSegment() {
  const std::shared_ptr<OpenSegment> segment = std::exchange(open_, nullptr);
  segment->full = true;
  // Otherwise the last group's acknowledgement seals it.
  if (segment->groups == 0) Seal(segment);
}

void NvmeTier::Seal(std::shared_ptr<OpenSegment> segment) {
  segment->full = false;                             // Seal once.
  if (!segments_.contains(segment->number)) return;  // The tier was cleared meanwhile.
  if (segment->records.empty()) return DropSegment(segment->number, EvictionReason::kReclaim);
  ++sealing_;
  auto sealed = std::make_shared<absl::StatusOr<uint64_t>>();
  io_.Run(
      [this, segment, sealed] {
        *sealed = SealSegment(files_, *segment->file, segment->header, segment->records,
                              segment->next_page);
      },
      [this, segment, sealed] {
        --sealing_;
        const auto found = segments_.find(segment->number);
        if (found == segments_.end()) return;
        found->second.writing = false;
        if (!sealed->ok()) {
          // Without a footer the segment is read by its groups.
          LogWarning("store_segment_seal_failed", "{}: {}", segment->file->path,
                     Message(sealed->status()));
          return;
        }
        bytes_ = bytes_ - found->second.bytes + **sealed;
        found->second.bytes = **sealed;
        MutexLock lock(stats_mutex_);
        stats_.bytes_written += FooterBytes(segment->records.size()) + 2 * kSegmentPage;
      });
}

void NvmeTier::FailQueuedWrites() {
  std::deque<Waiting> line;
  line.swap(write_queue_);
  for (Waiting& waiting : line) waiting.write.done(false);
}

void NvmeTier::RecordFailure(RetryBackoff& backoff, const char* what, const absl::Status& status) {
  if (!backoff.failing) {
    LogWarning("store_suspended",
               "{} to {} fails: {}; blocks there are misses until it works again", what,
               options_.directory, Message(status));
    backoff = {.failing = true, .retry_at = {}, .pause = options_.retry_first};
  } else if (clock_.Now() >= backoff.retry_at) {
    backoff.pause = std::min(2 * backoff.pause, options_.retry_max);
  }
  backoff.retry_at = clock_.Now() + backoff.pause;
  MutexLock lock(stats_mutex_);
  ++(&backoff == &write_backoff_ ? stats_.write_errors : stats_.read_errors);
}

void NvmeTier::RecordSuccess(RetryBackoff& backoff, const char* what) {
  if (!backoff.failing) return;
  backoff = {};
  LogInfo("store_recovered", "{} to {} works again", what, options_.directory);
}

void NvmeTier::BeginStop() {
  stopping_ = true;
  to_load_.clear();
  compaction_.reset();
  FailQueuedWrites();
  if (open_ != nullptr) CloseSegment();
}

bool NvmeTier::quiet() const {
  return write_queue_.empty() && groups_.empty() && reads_.empty() && to_load_.empty() &&
         !claiming_ && !opening_ && sealing_ == 0 && !(compaction_ && compaction_->pending > 0);
}

void NvmeTier::Tick() {
  const TimePoint now = clock_.Now();
  CheckReads();
  if (!groups_.empty() && now > groups_.front()->sent + options_.io_timeout &&
      !write_backoff_.failing) {
    RecordFailure(
        write_backoff_, "writing",
        DeadlineExceeded("nothing written for {:.0f} ms", Milliseconds(options_.io_timeout)));
  }
  const bool may_try = !write_backoff_.failing || now >= write_backoff_.retry_at;
  if (!claim_ && !claiming_ && !stopping_ && may_try) Claim();
  if (claim_ && now >= claim_refreshed_ + std::chrono::minutes(1)) {
    claim_refreshed_ = now;
    io_.Run([claim = claim_] { RefreshClaim(*claim); }, [] {});
  }
  if (!serving_ && now >= read_backoff_.retry_at) Probe();
  ContinueCompaction();
  UpdateGauges();
}

void NvmeTier::UpdateGauges() {
  MutexLock lock(stats_mutex_);
  stats_.tier.bytes_used = bytes_;
  stats_.segments = segments_.size();
  stats_.writing = claim_ != nullptr && !write_backoff_.failing;
}

NvmeStats NvmeTier::stats() const {
  NvmeStats stats;
  {
    MutexLock lock(stats_mutex_);
    stats = stats_;
  }
  stats.tier.bytes_total = options_.bytes;
  stats.tier.blocks = index_.blocks();
  stats.index_bytes = index_.memory_bytes();
  stats.serving = serving_;
  return stats;
}

}  // namespace penstock
