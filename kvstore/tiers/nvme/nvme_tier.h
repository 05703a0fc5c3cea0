#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "kvstore/tiers/disk/io_queue.h"
#include "kvstore/tiers/disk/store_directory.h"
#include "kvstore/tiers/disk/store_stats.h"
#include "kvstore/tiers/nvme/extent_codec.h"
#include "kvstore/tiers/nvme/nvme_index.h"
#include "kvstore/tiers/nvme/segment_load.h"

namespace penstock {

struct NvmeOptions {
  std::string directory;
  uint64_t bytes = 0;          // upper limit for this worker's segments
  uint64_t segment_bytes = 0;  // 0: derived from `bytes`
  SegmentFormat format;
  // The encoding of new blocks, see ExtentCodec. Existing blocks are read in any encoding.
  KvCodecSpec codec = {};
  std::vector<KvCodecRates> codec_choices = {};
  // The limit of blocks that are queued or being written. At the limit CanWrite is false.
  size_t writes_max = 64;
  Duration io_timeout = std::chrono::seconds(5);   // a slower disk counts as failed
  Duration retry_first = std::chrono::seconds(1);  // pause after an error; doubles each time
  Duration retry_max = std::chrono::seconds(30);
  Duration foreign_idle = std::chrono::hours(1);  // as ClaimWriter
};

// A block to be written. `bytes` is a page of the format's stride and must not change until `done`,
// which is called once, with true when the tier has the block.
struct NvmeWrite {
  BlockName name;
  uint32_t uses = 0;
  bool partial = false;  // as in SpillBlock
  std::span<const std::byte> bytes;
  std::function<void(bool)> done;
  // Used by the tier itself when compaction rewrites a block: `bytes` are encoded already, by
  // `codec`.
  bool rewrite = false;
  uint8_t codec = 0;
};

enum class NvmeReadState : uint8_t {
  kWhole,    // read and verified
  kMissing,  // absent, unreadable, or its checksum is wrong
  kLate,     // the disk is too slow, and may still write to the target
};
struct NvmeRead {
  std::vector<BlockId> ids;
  std::vector<std::byte*> targets;  // one for each id
  // Called once, with a state for each id. Afterwards no target is written to, except those with
  // kLate.
  std::function<void(const std::vector<NvmeReadState>&)> done;
  // Called once, when no target will be written to any more: right after `done`, or later.
  std::function<void()> released;
  // False for a read of the tier itself, which fills targets with the encoded bytes.
  bool is_use = true;
};

// Events for the tier's owner, on the owner's thread.
struct NvmeEvents {
  std::function<void(const BlockName&)> stored;
  std::function<void(const BlockName&, EvictionReason)> removed;
  // False: no block can be served any more. True: all blocks can be served again.
  std::function<void(bool)> served;
};

// This room is the NVMe tier: the format of segment files, the index of their blocks, and the log
// that writes, reads and reclaims them. It knows disk files and codecs, but not DRAM slots,
// restores or swaps.
//
// A log-structured store (Rosenblum and Ousterhout, "The Design and Implementation of a
// Log-Structured File System", SOSP 1991): segment files are appended to, and space is reclaimed by
// dropping the oldest segment. Before that, compaction rewrites the segment's blocks that were read
// since they were written (FIFO with reinsertion), the most used first, up to a quarter of the
// segment. That bounds the write amplification by 4/3, without metadata. While the disk fails,
// look-ups miss, one line is logged, and the tier retries with backoff.
// docs/adr/0009-segment-log.md has the reasons.
//
// All calls and callbacks are on the owner's thread, which Polls `io`, unless marked "any thread".
class NvmeTier {
 public:
  // INVALID_ARGUMENT when `bytes` is too small for a few segments of a few blocks.
  static absl::StatusOr<std::unique_ptr<NvmeTier>> Create(NvmeOptions options, StoreFiles& files,
                                                          IoQueue& io, const Clock& clock,
                                                          NvmeEvents events);
  // All reads and writes must have been answered, and io.open() must be 0.
  ~NvmeTier();

  // Claims a writer number in the directory and loads its segments, in the background.
  void Start();
  // Accepts no more writes; finishes pending ones and seals the open segment in the background.
  // Poll `io` until quiet().
  void BeginStop();
  // True when nothing is pending and the first load of the directory has ended or failed.
  bool quiet() const;
  // Must be called at least every second, for timeouts and retries.
  void Tick();

  bool CanWrite() const;
  // Requires CanWrite().
  void Write(NvmeWrite write);
  void Read(NvmeRead read);
  // Drops all blocks and removes their files.
  void Clear();

  // Any thread:
  const NvmeIndex& index() const { return index_; }
  bool serving() const { return serving_; }
  NvmeStats stats() const EXCLUDES(stats_mutex_);

 private:
  struct Segment {
    std::shared_ptr<SegmentFile> file;
    uint64_t bytes = 0;    // on the disk
    bool writing = false;  // not sealed yet
  };
  // The segment that is being appended to.
  struct OpenSegment {
    uint32_t number = 0;
    SegmentHeader header;
    std::shared_ptr<SegmentFile> file;
    uint32_t next_page = 1;
    std::vector<BlockRecord> records;  // acknowledged
    size_t groups = 0;                 // pending
    bool broken = false;               // a group failed: nothing is appended any more
    bool hole = false;                 // a group failed: later groups cannot be found
    bool full = false;                 // to be sealed when no group is pending
  };
  // A queued write. Writes are sent in groups, which are acknowledged in the order of writing,
  // because a segment without a footer is read in that order, up to the first invalid group.
  struct Waiting {
    NvmeWrite write;
    ExtentCodec::Stored stored;
    uint32_t pages() const { return static_cast<uint32_t>(stored.bytes.size() / kSegmentPage); }
  };
  struct Group {
    std::shared_ptr<OpenSegment> segment;
    GroupHeader header;
    DirectBuffer page{kSegmentPage};
    std::vector<Waiting> writes;
    TimePoint sent;
    bool landed = false;
    absl::Status status;
  };
  struct ReadJob;
  struct Extent;  // adjacent blocks of one ReadJob
  // The blocks of the oldest segment that compaction rewrites.
  struct SegmentCompaction {
    uint32_t segment = 0;
    std::vector<BlockRecord> left;
    size_t pending = 0;
  };
  // The time of the next attempt after an error.
  struct RetryBackoff {
    bool failing = false;
    TimePoint retry_at{};
    Duration pause{};
  };

  NvmeTier(NvmeOptions options, StoreFiles& files, IoQueue& io, const Clock& clock,
           NvmeEvents events);

  // nvme_tier.cc: writing.
  void Pump();
  void BeginSegment();
  void SendGroup(size_t count);
  size_t Fitting() const;  // number of queued writes that fit the open segment
  void OnLanded(Group& group, const absl::Status& status);
  void Acknowledge(Group& group);
  void CloseSegment();
  void Seal(std::shared_ptr<OpenSegment> segment);
  void FailQueuedWrites();
  void RecordFailure(RetryBackoff& backoff, const char* what, const absl::Status& status);
  void RecordSuccess(RetryBackoff& backoff, const char* what);
  void UpdateGauges();

  // nvme_tier_read.cc: reading.
  std::vector<Extent> PlanReads(ReadJob& job) const;
  void StartExtent(const std::shared_ptr<ReadJob>& job, Extent extent);
  void OnRead(ReadJob& job, const Extent& extent, const absl::Status& status);
  void Finish(ReadJob& job);
  void OnReadFailure(const absl::Status& status);
  void CheckReads();
  void Probe();
  void Serve(bool serving);

  // nvme_tier_space.cc: the directory, and reclaiming space.
  void Claim();
  void LoadNext();
  void OnLoaded();
  void Adopt(absl::StatusOr<LoadedSegment> loaded, const std::string& path);
  void MakeRoom();
  void DropSegment(uint32_t number, EvictionReason reason);
  void RemoveFile(const std::shared_ptr<SegmentFile>& file);
  void BeginCompaction();
  void ContinueCompaction();
  std::string PathOf(const SegmentName& name) const;

  const NvmeOptions options_;
  const uint32_t block_pages_;
  StoreFiles& files_;
  IoQueue& io_;
  const Clock& clock_;
  const NvmeEvents events_;

  ExtentCodec codec_;
  NvmeIndex index_;
  std::atomic<bool> serving_{true};
  mutable Mutex stats_mutex_;
  NvmeStats stats_ GUARDED_BY(stats_mutex_);

  // Used by the owner's thread only.
  std::shared_ptr<WriterClaim> claim_;  // shared with work that refreshes it; null: none
  bool claiming_ = false;
  bool stopping_ = false;
  TimePoint claim_refreshed_{};
  TimePoint loading_since_{};
  std::deque<SegmentName> to_load_;
  std::map<uint32_t, Segment> segments_;  // by number, oldest first
  uint32_t next_number_ = 0;
  uint64_t next_sequence_ = 1;
  uint64_t bytes_ = 0;  // of all segments on the disk
  std::shared_ptr<OpenSegment> open_;
  bool opening_ = false;
  size_t sealing_ = 0;
  std::deque<Waiting> write_queue_;
  std::deque<std::unique_ptr<Group>> groups_;
  size_t writing_ = 0;  // blocks in groups_
  std::optional<SegmentCompaction> compaction_;
  std::vector<std::shared_ptr<ReadJob>> reads_;
  size_t read_errors_ = 0;  // since the last successful read
  bool probing_ = false;
  RetryBackoff write_backoff_;
  RetryBackoff read_backoff_;
};

}  // namespace penstock
