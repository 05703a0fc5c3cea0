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

// The swapped-out blocks of one sequence. Dropping the ticket drops them. Move-only; must not
// outlive its store.
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

// The tiers below a worker's device pages: cooled blocks of prefixes, and what a preempted sequence
// must not lose. One thread of its own copies; the calls below never block on it and never copy a
// block. Any thread may call; block names come from one engine, so calls of one thread take effect
// in order.
class TieredStore {
 public:
  struct Options {
    uint64_t dram_bytes = 0;  // 0: no DRAM tier, and so no swapping
    // Spills that wait for the store's thread, each of which holds a page. At the bound Spill
    // refuses, and the block is evicted without a copy.
    size_t spills_max = 64;
    // The share of the DRAM tier that swapped-out sequences may take from cached blocks.
    double swap_share = 0.5;
    // The NVMe tier; none without a directory. Its format's layout is that of the pages.
    NvmeOptions nvme;
    // A block that leaves the DRAM tier is written to NVMe when it was used this often.
    uint32_t nvme_uses_min = 2;
    IoBackend io = IoBackend::kAuto;
    // When stopped, blocks that NVMe would admit are written there for at most so long.
    Duration save_time = std::chrono::seconds(2);
    // What each Restore that found anything took, with the slowest tier it read, and what each
    // block took from being offered to a tier to being kept there. May be empty. The store's
    // thread.
    std::function<void(Tier, Duration)> on_restore_time;
    std::function<void(Tier, Duration)> on_spill_time;
    // Pages whose blocks were copied (or are not going to be) have gone back to their pool, as far
    // as the store goes. May be empty. The store's thread, without locks; must not block.
    std::function<void()> on_pages_freed;
  };
  // What the store stands on, for tests to stand in for. Null: the real ones.
  struct Seams {
    std::unique_ptr<StoreFiles> files;
    std::unique_ptr<IoQueue> io;
  };

  // `pages` outlives the store; `on_event` may be empty. INVALID_ARGUMENT when a size holds not a
  // single block, RESOURCE_EXHAUSTED when the system does not give the memory. The directory's
  // state is no error: without it NVMe is tried again later.
  static absl::StatusOr<std::unique_ptr<TieredStore>> Open(const Options& options, PagedKv pages,
                                                           OnBlockEvent on_event, Seams seams = {});
  ~TieredStore();  // Stop()s. CHECKs that every ticket is gone.

  void Start();
  // Ends what is under way: restores get what they have, spills are dropped. Joins the thread.
  // Every page is given back. Idempotent.
  void Stop();

  // How many leading blocks of `ids` a Restore would find now. An answer may be outdated by the
  // time it is used, but no Restore delivers a wrong block. O(ids).
  FindResult Find(std::span<const BlockId> ids) const EXCLUDES(mutex_);

  // Keeps a copy of a page that is about to be evicted, or soon will be. The reference is held
  // until the copy is made. False when the store has no room to look at it now: evict it without a
  // copy.
  bool Spill(SpillBlock block) EXCLUDES(mutex_);

  // Fills pages[i] with the block ids[i], in the background; counts as a use of each. What cannot
  // be had ends at `done` with fewer whole blocks, never with another error. ids and pages are of
  // equal length. After Stop, `done` is called at once.
  void Restore(std::vector<BlockId> ids, std::vector<BlockRef> pages, OnRestored done)
      EXCLUDES(mutex_);

  // Uses of blocks by sequences that had them in device pages: keeps the copies from going first.
  void Touch(std::span<const BlockId> ids) EXCLUDES(mutex_);

  // Copies private pages (a partial tail, too) to where nothing is evicted. RESOURCE_EXHAUSTED at
  // once when the share of swaps is used up; the pages are then unchanged. They are held until the
  // copies are made.
  absl::StatusOr<SwapTicket> SwapOut(std::vector<BlockRef>& pages) EXCLUDES(mutex_);
  // The other way: `pages` are as many as the ticket's blocks, and all come back whole, unless the
  // store was stopped. Swaps and restores are served in order.
  void SwapIn(SwapTicket ticket, std::vector<BlockRef> pages, OnRestored done) EXCLUDES(mutex_);

  // The most blocks that can be swapped out at once.
  int64_t swap_blocks_max() const;

  // Forgets all blocks, those that wait to be kept too (not swapped sequences). `done` is called by
  // the store's thread.
  void Clear(std::function<void()> done) EXCLUDES(mutex_);

  // Waits until every spill so far is either kept or dropped. For tests and tools.
  void WaitUntilQuiet() EXCLUDES(mutex_);

  // What is served now and from where, e.g. for a new subscriber of events. Events that were not
  // delivered yet are contained.
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
  struct Reading;  // a RestoreJob whose blocks of NVMe are on their way
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
  struct FreeSlotsJob {  // of a dropped ticket: in order with its SwapOut
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
  std::optional<uint32_t> TakeSlot() REQUIRES(mutex_);  // evicts if need be
  void Evict(uint32_t slot, EvictionReason reason) REQUIRES(mutex_);
  void WakeThread() REQUIRES(mutex_);
  bool OnNvme(const BlockId& id) const REQUIRES(mutex_);  // and served

  // The store's thread.
  void Run();
  bool RunJob();
  bool RunSpill();
  void TellPagesFreed(size_t at_least);
  void DeliverEvents() EXCLUDES(mutex_);
  void Do(RestoreJob job);
  void Do(SwapOutJob job);
  void Do(SwapInJob job);
  void Do(const FreeSlotsJob& job);
  void Do(const ClearJob& job);
  void FinishRestore(Reading& reading, const std::vector<NvmeReadState>& states);
  std::optional<uint32_t> SlotForSpill() REQUIRES(mutex_);
  void Keep(WaitingSpill spill, uint32_t slot);
  // Of blocks that are about to leave DRAM. A block's slot is free when its `done` has run.
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
  void ToSlot(const BlockRef& page, uint32_t slot) const;
  void FromSlot(uint32_t slot, const BlockRef& page) const;

  const Options options_;
  const PagedKv pages_;
  const OnBlockEvent on_event_;
  const SteadyClock clock_;
  const std::unique_ptr<StoreFiles> files_;
  std::unique_ptr<IoQueue> io_;
  std::unique_ptr<NvmeTier> nvme_;  // the thread's, but for its index; null: none
  std::thread thread_;

  mutable Mutex mutex_;
  CondVar quiet_changed_;
  std::unique_ptr<DramTier> dram_ PT_GUARDED_BY(mutex_);  // null: no DRAM tier
  SlotArena* arena_ = nullptr;                            // its; null as well
  std::deque<Job> jobs_ GUARDED_BY(mutex_);
  std::deque<WaitingSpill> spills_ GUARDED_BY(mutex_);
  std::vector<BlockEvent> events_ GUARDED_BY(mutex_);  // not delivered yet
  size_t swap_slots_ GUARDED_BY(mutex_) = 0;
  bool nvme_served_ GUARDED_BY(mutex_) = true;  // as events have said
  bool asleep_ GUARDED_BY(mutex_) = false;      // the thread
  bool quiet_ GUARDED_BY(mutex_) = false;       // nothing is under way behind the queues
  bool stopping_ GUARDED_BY(mutex_) = false;
  StoreStats stats_ GUARDED_BY(mutex_);

  // The thread's own.
  size_t demoting_ = 0;  // slots
  size_t freed_ = 0;     // jobs and spills whose pages nobody was told of
  bool in_use_ = false;  // and the arena not all resident
  TimePoint ticked_{};
  std::optional<TimePoint> spill_waits_since_;
};

}  // namespace penstock
