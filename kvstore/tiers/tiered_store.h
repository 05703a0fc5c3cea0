#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"
#include "kernels/paged_kv.h"
#include "kvstore/tiers/disk/store_stats.h"
#include "kvstore/tiers/disk/store_types.h"
#include "kvstore/tiers/dram_tier.h"
#include "kvstore/tiers/nvme/nvme_tier.h"

namespace penstock {

class TieredStore;

// The swapped-out blocks of one sequence. Destroying the ticket drops them. Move-only; one thread
// at a time; must not outlive its store.
class SwapTicket {
 public:
  SwapTicket() = default;
  SwapTicket(SwapTicket&& other) noexcept;
  SwapTicket& operator=(SwapTicket&& other) noexcept;
  SwapTicket(const SwapTicket&) = delete;
  SwapTicket& operator=(const SwapTicket&) = delete;
  ~SwapTicket();

  size_t blocks() const { return slots_.size(); }
  explicit operator bool() const { return store_ != nullptr; }

 private:
  friend class TieredStore;
  SwapTicket(TieredStore* store, std::vector<uint32_t> slots)
      : store_(store), slots_(std::move(slots)) {}
  TieredStore* store_ = nullptr;
  std::vector<uint32_t> slots_;
};

// This room keeps KV that left a worker's device memory: the tiers in DRAM and on NVMe below the
// prefix cache. It knows pages and block names, but not prefixes, sequences or requests, and it
// never decides which blocks leave the device.
//
// TieredStore holds evicted blocks of prefixes, which it may drop, and swapped-out blocks of
// preempted sequences, which it must not lose. Its own thread copies; the calls below never block
// on that thread and never copy a block. Any thread; the calls of one thread take effect in order.
class TieredStore {
 public:
  struct Options {
    uint64_t dram_bytes = 0;  // 0: no DRAM tier, and therefore no swapping
    // The limit of queued spills; each holds a page. Beyond it Spill refuses, and the block is
    // evicted without a copy.
    size_t spills_max = 64;
    // The share of the DRAM tier that swapped-out sequences may use.
    double swap_share = 0.5;
    // The NVMe tier; none if the directory is empty. Its format's layout must be that of the pages.
    NvmeOptions nvme;
    // A block that leaves the DRAM tier is written to NVMe if it was used at least this often.
    uint32_t nvme_uses_min = 2;
    IoBackend io = IoBackend::kAuto;
    // Upper limit of the time that Stop spends on writing blocks to NVMe that it would admit.
    Duration save_time = std::chrono::seconds(2);
    // Called with the duration of each Restore that found anything, and the slowest tier that it
    // read; and with the time of each block from Spill until the tier has it. May be empty. On the
    // store's thread.
    std::function<void(Tier, Duration)> on_restore_time;
    std::function<void(Tier, Duration)> on_spill_time;
    // Called after pages whose copies have ended (or were dropped) have gone back to their pool.
    // May be empty. On the store's thread, without locks; must not block.
    std::function<void()> on_pages_freed;
  };
  // Replacements for tests; null: the real ones.
  struct Seams {
    std::unique_ptr<StoreFiles> files;
    std::unique_ptr<IoQueue> io;
    // Called with each slot of host memory that was filled, which it may damage. On the store's
    // thread.
    std::function<void(std::span<std::byte>)> on_filled;
  };

  // `pages` outlives the store; `on_event` may be empty. INVALID_ARGUMENT when a size is too small
  // for one block; RESOURCE_EXHAUSTED when memory cannot be allocated. An unusable directory is no
  // error: NVMe is retried later.
  static absl::StatusOr<std::unique_ptr<TieredStore>> Open(const Options& options, PagedKv pages,
                                                           OnBlockEvent on_event, Seams seams = {});
  ~TieredStore();  // Calls Stop. CHECKs that every ticket is destroyed.

  void Start();
  // Finishes pending work: restores return what they have, spills are dropped. Joins the thread and
  // gives back every page. May be called again.
  void Stop();

  // The number of leading blocks of `ids` that a Restore would find now. The answer may be outdated
  // when it is used, but no Restore ever delivers a wrong block. O(ids).
  FindResult Find(std::span<const BlockId> ids) const EXCLUDES(mutex_);

  // Copies a page that is being evicted, or soon will be; holds the reference until the copy is
  // made. False when the queue is full: the block is then evicted without a copy.
  bool Spill(SpillBlock block) EXCLUDES(mutex_);

  // Fills pages[i] with block ids[i] in the background and counts a use of each. A page whose
  // reference holds its row needs a copy with the KV of all layers. A missing or unreadable block
  // only lowers `whole` in the result of `done`; there is no other error. ids and
  // pages have equal length. After Stop, `done` is called at once.
  void Restore(std::vector<BlockId> ids, std::vector<BlockRef> pages, OnRestored done)
      EXCLUDES(mutex_);

  // Counts uses by sequences that had the blocks in device pages, so that the copies are evicted
  // later.
  void Touch(std::span<const BlockId> ids) EXCLUDES(mutex_);

  // Copies private pages, including a partial tail, into slots that are never evicted.
  // RESOURCE_EXHAUSTED at once when the share of swaps is used up; `pages` is then unchanged. The
  // references are held until the copies are made.
  absl::StatusOr<SwapTicket> SwapOut(std::vector<BlockRef>& pages) EXCLUDES(mutex_);
  // Copies the ticket's blocks into `pages`, which are as many. All arrive whole, unless the store
  // was stopped or host memory is damaged. Swaps and restores are served in order.
  void SwapIn(SwapTicket ticket, std::vector<BlockRef> pages, OnRestored done) EXCLUDES(mutex_);

  // The maximum number of blocks that can be swapped out at the same time.
  int64_t swap_blocks_max() const;

  // Drops all blocks, including queued spills, but no swapped-out sequences. `done` is called on
  // the store's thread.
  void Clear(std::function<void()> done) EXCLUDES(mutex_);

  // Waits until every spill so far is stored or dropped. For tests and tools.
  void WaitUntilQuiet() EXCLUDES(mutex_);

  // All served blocks and their tiers, for example for a new subscriber of events. It includes
  // events that were not delivered yet.
  std::vector<BlockEvent> Snapshot() const EXCLUDES(mutex_);
  StoreStats stats() const EXCLUDES(mutex_);

 private:
  friend class SwapTicket;
  static constexpr uint32_t kFromNvme = UINT32_MAX;
  struct RestoreJob {
    std::vector<BlockId> ids;
    std::vector<uint32_t> sources;  // of the leading blocks: a pinned slot, or kFromNvme
    std::vector<BlockRef> pages;
    OnRestored done;
    TimePoint asked;
  };
  struct Reading;  // a RestoreJob with pending NVMe reads
  struct WaitingSpill {
    SpillBlock block;
    TimePoint offered;
  };
  struct SwapOutJob {
    std::vector<uint32_t> slots;
    std::vector<BlockRef> pages;
  };
  struct SwapInJob {
    SwapTicket ticket;
    std::vector<BlockRef> pages;
    OnRestored done;
  };
  struct FreeSlotsJob {  // of a dropped ticket; queued behind its SwapOut
    std::vector<uint32_t> slots;
  };
  struct ClearJob {
    std::function<void()> done;
  };
  using Job = std::variant<RestoreJob, SwapOutJob, SwapInJob, FreeSlotsJob, ClearJob>;

  TieredStore(const Options& options, PagedKv pages, OnBlockEvent on_event, Seams seams);
  absl::Status MakeTiers();

  bool Push(Job& job) REQUIRES(mutex_);  // false after Stop; the job is then unchanged
  void PinHits(RestoreJob& job) REQUIRES(mutex_);
  void DropSwap(std::vector<uint32_t> slots) EXCLUDES(mutex_);
  std::optional<uint32_t> TakeSlot() REQUIRES(mutex_);  // evicts a block if necessary
  void Evict(uint32_t slot, EvictionReason reason) REQUIRES(mutex_);
  void WakeThread() REQUIRES(mutex_);
  bool OnNvme(const BlockId& id) const REQUIRES(mutex_);  // and NVMe is being served

  // Runs on the store's thread:
  void Run();
  bool RunJob();
  bool RunSpill();
  void AnnouncePagesFreed(size_t at_least);
  void DeliverEvents() EXCLUDES(mutex_);
  void Do(RestoreJob job);
  void Do(SwapOutJob job);
  void Do(SwapInJob job);
  void Do(const FreeSlotsJob& job);
  void Do(const ClearJob& job);
  void FinishRestore(Reading& reading, const std::vector<NvmeReadState>& states);
  std::optional<uint32_t> SlotForSpill() REQUIRES(mutex_);
  void Keep(WaitingSpill spill, uint32_t slot);
  // Demotion of blocks that are about to leave DRAM. A block's slot is free when its write's `done`
  // has run.
  bool DeservesNvme(uint32_t slot) const REQUIRES(mutex_);
  void Demote(uint32_t slot);
  void OnDemoted(uint32_t slot, uint32_t uses);
  void DemoteAhead();
  bool Wait();  // false: stop
  void Save();
  void Finish();
  NvmeEvents EventsOfNvme();
  void OnNvmeChanged(const BlockName& name, std::optional<Tier> tier) EXCLUDES(mutex_);
  void OnNvmeServed(bool served) EXCLUDES(mutex_);
  void Abandon(Job job);  // after Stop
  // Every copy into a slot has a checksum, and every use of the copy checks it: a block with a
  // flipped bit is a miss.
  void ToSlot(const BlockRef& page, uint32_t slot);
  bool FromSlot(uint32_t slot, const BlockRef& page) const;  // false: the slot is damaged
  bool Intact(uint32_t slot) const;
  std::span<std::byte> SlotBytes(uint32_t slot) const;
  void DropDamaged(std::span<const uint32_t> slots) REQUIRES(mutex_);
  void ReportDamage(size_t blocks) EXCLUDES(mutex_);

  const Options options_;
  const PagedKv pages_;
  const OnBlockEvent on_event_;
  const SteadyClock clock_;
  const std::unique_ptr<StoreFiles> files_;
  std::unique_ptr<IoQueue> io_;
  const std::function<void(std::span<std::byte>)> on_filled_;
  std::unique_ptr<NvmeTier> nvme_;  // the thread's, except its index; null: no NVMe tier
  std::thread thread_;

  mutable Mutex mutex_;
  CondVar quiet_changed_;
  std::unique_ptr<DramTier> dram_ PT_GUARDED_BY(mutex_);  // null: no DRAM tier
  SlotArena* arena_ = nullptr;                            // the DRAM tier's; null without one
  std::deque<Job> jobs_ GUARDED_BY(mutex_);
  std::deque<WaitingSpill> spills_ GUARDED_BY(mutex_);
  std::vector<BlockEvent> events_ GUARDED_BY(mutex_);  // not delivered yet
  size_t swap_slots_ GUARDED_BY(mutex_) = 0;
  bool nvme_served_ GUARDED_BY(mutex_) = true;  // as announced by events
  bool asleep_ GUARDED_BY(mutex_) = false;      // the thread
  bool quiet_ GUARDED_BY(mutex_) = false;       // nothing is pending behind the queues
  bool stopping_ GUARDED_BY(mutex_) = false;
  StoreStats stats_ GUARDED_BY(mutex_);

  // Used by the store's thread only.
  std::vector<uint32_t> checksums_;  // CRC32C, by slot
  size_t demoting_ = 0;              // slots being written to NVMe
  size_t freed_ = 0;                 // jobs and spills whose freed pages were not announced yet
  bool in_use_ = false;              // the store was used, and its arena is not fully resident
  TimePoint ticked_{};
  std::optional<TimePoint> spill_waits_since_;
};

}  // namespace penstock
