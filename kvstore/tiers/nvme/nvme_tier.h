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
  uint64_t bytes = 0;          // the most that this worker's segments take
  uint64_t segment_bytes = 0;  // 0: chosen for `bytes`
  SegmentFormat format;
  // How blocks are kept, see ExtentCodec. What is there is read however it was kept.
  KvCodecSpec codec = {};
  std::vector<KvCodecRates> codec_choices = {};
  // Blocks that wait to be written or are being written. At the bound CanWrite is false.
  size_t writes_max = 64;
  Duration io_timeout = std::chrono::seconds(5);   // a disk that takes longer is no use
  Duration retry_first = std::chrono::seconds(1);  // after backoff; doubles
  Duration retry_max = std::chrono::seconds(30);
  Duration foreign_idle = std::chrono::hours(1);  // as ClaimWriter
};

// A block to be written. `bytes` is a page of the format's stride and stays as it is until `done`,
// which is called once, with whether the block is now kept.
struct NvmeWrite {
  BlockName name;
  uint32_t uses = 0;
  std::span<const std::byte> bytes;
  std::function<void(bool)> done;
  // The tier's own: a block's second round. `bytes` are then as they were kept, by this codec.
  bool again = false;
  uint8_t codec = 0;
};

enum class NvmeReadState : uint8_t {
  kWhole,    // read and verified
  kMissing,  // not here, not readable or not what was written
  kLate,     // the disk is too slow, and may still write to where the block should go
};
struct NvmeRead {
  std::vector<BlockId> ids;
  std::vector<std::byte*> targets;  // one an id
  // Once, with a state for every id. Nothing writes to the targets any more, but where kLate.
  std::function<void(const std::vector<NvmeReadState>&)> done;
  // Once, when nothing writes to any target any more: after `done`, or at once with it.
  std::function<void()> released;
  bool is_use = true;  // or else the tier's own affair: targets get what is on the disk
};

// What a tier tells its owner, on the owner's thread.
struct NvmeEvents {
  std::function<void(const BlockName&)> stored;
  std::function<void(const BlockName&, EvictionReason)> removed;
  // All blocks at once cannot be served any more, or can again.
  std::function<void(bool)> served;
};

// Blocks in segment files on a disk: a log that is written at its end and dropped at its beginning.
// A block that was served since it was written is written once more before its segment is dropped,
// up to a quarter of the segment's blocks: that bounds the write amplification by 4/3 (and
// metadata). RetryBackoff with the disk makes misses, one line in the log, and a new try later.
//
// Calls and callbacks are the owner's thread's, which Polls `io`, except where "any thread" is
// said.
class NvmeTier {
 public:
  // INVALID_ARGUMENT when `bytes` is too small for a few segments of a few blocks.
  static absl::StatusOr<std::unique_ptr<NvmeTier>> Create(NvmeOptions options, StoreFiles& files,
                                                          IoQueue& io, const Clock& clock,
                                                          NvmeEvents events);
  // Everything that was asked for has been answered, and io.open() is 0.
  ~NvmeTier();

  // Takes a number in the directory and reads what is there, in the background.
  void Start();
  // No more writes are taken; those under way are finished and the open segment is sealed, in the
  // background. Poll `io` until quiet().
  void BeginStop();
  // Nothing is under way, and the first reading of the directory is over (or has failed).
  bool quiet() const;
  // Now and then, at least each second: timeouts and new tries.
  void Tick();

  bool CanWrite() const;
  // CanWrite is true.
  void Write(NvmeWrite write);
  void Read(NvmeRead read);
  // Forgets all blocks; their files are removed.
  void Clear();

  // Any thread.
  const NvmeIndex& index() const { return index_; }
  bool serving() const { return serving_; }
  NvmeStats stats() const EXCLUDES(stats_mutex_);

 private:
  struct Segment {
    std::shared_ptr<SegmentFile> file;
    uint64_t bytes = 0;    // on the disk
    bool writing = false;  // not sealed yet
  };
  // The segment at whose end is written.
  struct OpenSegment {
    uint32_t number = 0;
    SegmentHeader header;
    std::shared_ptr<SegmentFile> file;
    uint32_t next_page = 1;
    std::vector<BlockRecord> records;  // acknowledged
    size_t groups = 0;                 // under way
    bool broken = false;               // a group failed: nothing is written behind it
    bool hole = false;                 // ... and what was, cannot be found
    bool full = false;                 // to be sealed when no group is under way
  };
  // Blocks that are written together. They are acknowledged in the order of writing, because a
  // segment without a footer is read in that order, up to the first hole.
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
  struct Extent;  // blocks of one ReadJob that lie side by side
  // Blocks of the oldest segment that deserve another round.
  struct Drain {
    uint32_t segment = 0;
    std::vector<BlockRecord> left;
    size_t under_way = 0;
  };
  // When to try again what failed.
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
  size_t Fitting() const;  // writes of the line that the open segment takes now
  void OnLanded(Group& group, const absl::Status& status);
  void Acknowledge(Group& group);
  void CloseSegment();
  void Seal(std::shared_ptr<OpenSegment> segment);
  void FailLine();
  void Note(RetryBackoff& backoff, const char* what, const absl::Status& status);
  void NoteWell(RetryBackoff& backoff, const char* what);
  void UpdateGauges();

  // nvme_tier_read.cc: reading.
  std::vector<Extent> PlanReads(ReadJob& job) const;
  void StartExtent(const std::shared_ptr<ReadJob>& job, Extent extent);
  void OnRead(ReadJob& job, const Extent& extent, const absl::Status& status);
  void Finish(ReadJob& job);
  void OnReadTrouble(const absl::Status& status);
  void CheckReads();
  void Probe();
  void Serve(bool serving);

  // nvme_tier_space.cc: the directory, and which segments stay.
  void Claim();
  void LoadNext();
  void OnLoaded();
  void Adopt(absl::StatusOr<LoadedSegment> loaded, const std::string& path);
  void MakeRoom();
  void DropSegment(uint32_t number, EvictionReason reason);
  void RemoveFile(const std::shared_ptr<SegmentFile>& file);
  void BeginDrain();
  void DrainMore();
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

  // The owner's thread's.
  std::shared_ptr<WriterClaim> claim_;  // shared with work that refreshes it; null: none
  bool claiming_ = false;
  bool stopping_ = false;
  TimePoint claim_refreshed_{};
  TimePoint loading_since_{};
  std::deque<SegmentName> to_load_;
  std::map<uint32_t, Segment> segments_;  // by number, the oldest first
  uint32_t next_number_ = 0;
  uint64_t next_sequence_ = 1;
  uint64_t bytes_ = 0;  // of all segments on the disk
  std::shared_ptr<OpenSegment> open_;
  bool opening_ = false;
  size_t sealing_ = 0;
  std::deque<Waiting> line_;
  std::deque<std::unique_ptr<Group>> groups_;
  size_t writing_ = 0;  // blocks in groups_
  std::optional<Drain> drain_;
  std::vector<std::shared_ptr<ReadJob>> reads_;
  size_t read_errors_ = 0;  // since the last good one
  bool probing_ = false;
  RetryBackoff write_backoff_;
  RetryBackoff read_backoff_;
};

}  // namespace penstock
