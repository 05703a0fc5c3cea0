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

// Which worker has which prefix, over all workers: a radix tree of block ids, path-compressed into
// runs of up to 64 blocks. An id names its whole prefix, so the tree needs no edges: what follows a
// run, or leaves it in the middle, is found by its own id. That also spreads the work at every
// divergence: a run's lock, and a block's place in the directory, come from their own ids, so a
// system prompt that everybody shares is one more run and nobody's bottleneck.
//
// Find never waits: it reads runs that are replaced and never changed (docs/adr/0005). Changes from
// several threads take turns by shard. Any thread.
class PrefixIndex {
 public:
  // At `blocks_max` blocks, what is stored is not noted; see dropped().
  explicit PrefixIndex(uint64_t blocks_max = uint64_t{64} << 20);
  ~PrefixIndex();
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  // Fills `matches` with every worker that has a leading part of `prompt`.
  void Find(std::span<const BlockId> prompt, PrefixMatches& matches) const;
  // Whether `worker` has the block, expected or not.
  bool Holds(uint32_t worker, const BlockId& id) const;
  // At most `most` of the workers that have the block, by number, and where.
  struct Holder {
    uint32_t worker;
    BlockTier tier;
  };
  std::vector<Holder> HoldersOf(const BlockId& id, size_t max) const;

  // `ids`: each the parent of the next. `parent`, of the first, where it is known, lets a run grow.
  // worker < kIndexWorkersMax.
  void Store(uint32_t worker, BlockTier tier, const BlockId* parent, std::span<const BlockId> ids);
  // As Store(kExpected), of the blocks that the worker does not have. Returns how many those are.
  uint64_t Expect(uint32_t worker, const BlockId* parent, std::span<const BlockId> ids);
  // In any order, here and below; unknown ones are passed over.
  void Move(uint32_t worker, BlockTier tier, std::span<const BlockId> ids);
  void Remove(uint32_t worker, std::span<const BlockId> ids);
  // Removes those of `ids` that are expected only.
  void Unexpect(uint32_t worker, std::span<const BlockId> ids);
  // Removes all of a worker's blocks.
  void Clear(uint32_t worker);

  uint64_t blocks() const { return blocks_; }  // that any worker has
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
    BlockDirectory directory;  // changes: under `mutex`
  };

  using Holdings = absl::InlinedVector<RunHolding, 16>;
  struct Outcome {
    Holdings holdings;
    int64_t gained = 0;  // blocks, by the worker
    bool changed = false;
  };
  struct Edited {
    size_t taken = 0;  // ids that were dealt with; 0: the index has changed meanwhile
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
  // With the run's lock held, as the following.
  int64_t EditRun(const Edit& edit, uint32_t number, const PrefixRun& run, uint64_t blocks);
  static Outcome OutcomeOf(const Edit& edit, const PrefixRun& run, uint64_t blocks);
  static int64_t Apply(const Edit& edit, uint64_t blocks, std::array<uint64_t, kBlockTiers>& tiers);
  void Replace(uint32_t number, const PrefixRun& old, std::span<const RunHolding> holdings);
  void Shorten(uint32_t number, const PrefixRun& run, uint32_t length);
  size_t Enter(uint32_t run, uint32_t offset, std::span<const BlockId> ids);
  void Leave(uint32_t run, uint32_t offset, std::span<const BlockId> ids);

  const uint64_t blocks_max_;
  mutable EpochDomain epochs_;
  RunTable runs_;
  std::array<std::unique_ptr<Shard>, kShards> shards_;
  std::array<std::atomic<uint64_t>, kIndexWorkersMax> held_{};
  std::atomic<uint64_t> blocks_{0};
  std::atomic<uint64_t> dropped_{0};
};

}  // namespace penstock
