#pragma once

#include <absl/container/inlined_vector.h>

#include <array>
#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "router/index/block_directory.h"
#include "router/index/prefix_matches.h"
#include "router/index/run_table.h"

namespace penstock {

// Room router/index: the map from cached blocks to the workers that have them. It knows block ids
// and numbers of workers; it may not know workers' endpoints or states, prompts, events on the wire
// or placement.

// The prefix index of all workers: a radix tree of block ids, path-compressed into runs of up to 64
// blocks, as SGLang's RadixAttention has for one engine. A block id is a hash of the whole prefix
// up to the block, so the tree needs no edges: the block that follows a run, or branches off in
// its middle, is found by its own id in a hash table (BlockDirectory). The locks of runs and the
// shards of the table are chosen by the blocks' own ids, so a system prompt that all requests share
// is no point of contention.
//
// Readers are lock-free: Find reads immutable runs under epoch-based reclamation (docs/adr/0005).
// Writers lock one run and one shard at a time. Any thread.
class PrefixIndex {
 public:
  // Blocks beyond `blocks_max` are not stored, only counted in dropped().
  explicit PrefixIndex(uint64_t blocks_max = uint64_t{64} << 20);
  ~PrefixIndex();
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  // Fills `matches` with every worker that has at least the first block of `prompt`. Lock-free.
  void Find(std::span<const BlockId> prompt, PrefixMatches& matches) const;
  // True when `worker` has the block, in any tier, kExpected included.
  bool Holds(uint32_t worker, const BlockId& id) const;
  // At most `max` workers that have the block, by number, and the tier it is in.
  struct Holder {
    uint32_t worker;
    BlockTier tier;
  };
  std::vector<Holder> HoldersOf(const BlockId& id, size_t max) const;

  // `worker` (< kIndexWorkersMax) has the blocks `ids` in `tier`. Each block is the parent of the
  // next one. `parent` is the parent of the first; nullptr: unknown. With it, the run that ends
  // with the parent can grow instead of a new run being made.
  void Store(uint32_t worker, BlockTier tier, const BlockId* parent, std::span<const BlockId> ids);
  // Stores the blocks that the worker does not have as kExpected. Returns their number.
  uint64_t Expect(uint32_t worker, const BlockId* parent, std::span<const BlockId> ids);
  // `ids` are in any order, here and below; unknown ids are ignored.
  void Move(uint32_t worker, BlockTier tier, std::span<const BlockId> ids);
  void Remove(uint32_t worker, std::span<const BlockId> ids);
  // Removes the blocks of `ids` that are in the tier kExpected.
  void Unexpect(uint32_t worker, std::span<const BlockId> ids);
  // Removes all blocks of a worker. Visits every run.
  void Clear(uint32_t worker);

  uint64_t blocks() const { return blocks_; }  // distinct blocks that some worker has
  uint64_t blocks_of(uint32_t worker) const { return held_[worker]; }
  uint64_t dropped() const { return dropped_; }  // blocks, since the start

 private:
  enum class Change { kStore, kExpect, kMove, kRemove, kUnexpect };
  struct Edit {
    Change change;
    uint32_t worker;
    BlockTier tier = BlockTier::kExpected;
  };
  static constexpr size_t kShards = 16;
  struct Shard {
    explicit Shard(EpochDomain& epochs) : directory(epochs) {}
    Mutex mutex;
    BlockDirectory directory;  // changed under `mutex`, read without
  };

  using Holdings = absl::InlinedVector<RunHolding, 16>;
  struct Outcome {
    Holdings holdings;
    int64_t gained = 0;  // change in the number of the worker's blocks
    bool changed = false;
  };
  struct Edited {
    size_t taken = 0;  // ids processed; 0: another thread changed the index, look up again
    int64_t gained = 0;
  };

  Shard& ShardOf(uint64_t hash) const { return *shards_[hash >> 60]; }
  BlockPlace PlaceOf(const BlockId& id) const;
  void EditEach(const Edit& edit, std::span<const BlockId> ids);
  uint64_t StoreChain(const Edit& edit, const BlockId* parent, std::span<const BlockId> ids);
  Edited EditKnown(const Edit& edit, BlockPlace place, std::span<const BlockId> ids);
  Edited AddNew(const Edit& edit, const BlockId* previous, std::span<const BlockId> ids);
  size_t Append(const Edit& edit, BlockPlace after, const BlockId& previous,
                std::span<const BlockId> ids);
  size_t AddRun(const Edit& edit, std::span<const BlockId> ids);
  // The caller holds the run's lock, here and below.
  int64_t EditRun(const Edit& edit, uint32_t number, const PrefixRun& run, uint64_t blocks);
  static Outcome OutcomeOf(const Edit& edit, const PrefixRun& run, uint64_t blocks);
  static int64_t Apply(const Edit& edit, uint64_t blocks, std::array<uint64_t, kBlockTiers>& tiers);
  void Replace(uint32_t number, const PrefixRun& old, std::span<const RunHolding> holdings);
  void Shorten(uint32_t number, const PrefixRun& run, uint32_t length);
  size_t AddToDirectory(uint32_t run, uint32_t offset, std::span<const BlockId> ids);
  void RemoveFromDirectory(uint32_t run, uint32_t offset, std::span<const BlockId> ids);

  const uint64_t blocks_max_;
  mutable EpochDomain epochs_;
  RunTable runs_;
  std::array<std::unique_ptr<Shard>, kShards> shards_;
  std::array<std::atomic<uint64_t>, kIndexWorkersMax> held_{};
  std::atomic<uint64_t> blocks_{0};
  std::atomic<uint64_t> dropped_{0};
};

}  // namespace penstock
