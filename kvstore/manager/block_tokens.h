#pragma once

#include <absl/container/flat_hash_map.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "kvstore/names/block_hash.h"

namespace penstock {

// The token ids of served blocks, for readers outside the cluster, whose indexes hash tokens in
// their own way. Block ids alone tell them nothing.
//
// An entry lives as long as a tier serves its block, and until `retired_max` more blocks have left
// all tiers: a lower tier announces an evicted block only when its copy is made. Memory is bounded
// by the blocks of all tiers. Any thread; every call is short.
class BlockTokens {
 public:
  static constexpr size_t kRetiredMax = 65536;  // blocks

  struct Content {
    std::vector<uint32_t> tokens;  // of this block alone
    BlockId parent;
    bool first = false;  // it begins a prompt: `parent` is the namespace's root and no block
  };

  explicit BlockTokens(int32_t block_tokens, size_t retired_max = kRetiredMax);

  // The device serves the blocks `ids`, which start at `root`. `tokens` are those of all of them.
  void Keep(const BlockId& root, std::span<const BlockId> ids, std::span<const uint32_t> tokens)
      EXCLUDES(mutex_);
  // The device serves `ids` no more.
  void LeaveDevice(std::span<const BlockId> ids) EXCLUDES(mutex_);
  // A lower tier begins (`served`) or ends to serve `id`.
  void ServeBelow(const BlockId& id, bool served) EXCLUDES(mutex_);

  // The contents of `ids`, in order; nullopt for those that are not known.
  std::vector<std::optional<Content>> Find(std::span<const BlockId> ids) const EXCLUDES(mutex_);
  size_t size() const EXCLUDES(mutex_);

 private:
  struct Entry {
    Content content;
    bool on_device = false;
    bool below = false;
    uint64_t retired = 0;  // the number of its retirement; 0: a tier serves it
  };
  struct Retired {
    BlockId id;
    uint64_t number = 0;
  };

  void RetireUnserved(const BlockId& id, Entry& entry) REQUIRES(mutex_);

  const int32_t block_tokens_;
  const size_t retired_max_;
  mutable Mutex mutex_;
  absl::flat_hash_map<BlockId, Entry> blocks_ GUARDED_BY(mutex_);
  std::deque<Retired> retired_ GUARDED_BY(mutex_);  // the earliest first
  uint64_t retirements_ GUARDED_BY(mutex_) = 0;
};

}  // namespace penstock
