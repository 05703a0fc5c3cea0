#pragma once

#include <absl/container/flat_hash_set.h>
#include <absl/hash/hash.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>

#include "kvstore/names/block_hash.h"

namespace penstock {

// A bounded memory of evicted blocks (a "ghost" list): the last `limit` evictions, less those whose
// block is in the cache again. One thread at a time.
template <class Value>
class EvictedBlocks {
 public:
  explicit EvictedBlocks(size_t limit)
      : limit_(std::clamp<size_t>(limit, 1, std::numeric_limits<uint32_t>::max())) {}
  EvictedBlocks(const EvictedBlocks&) = delete;  // places_ points to records_
  EvictedBlocks& operator=(const EvictedBlocks&) = delete;

  void Put(const BlockId& id, const Value& value) {
    places_.erase(id);
    const uint32_t place = next_;
    next_ = place + 1 == limit_ ? 0 : place + 1;
    if (place == records_.size()) {
      records_.push_back({id, value});
    } else {
      Forget(place);
      records_[place] = {id, value};
    }
    places_.insert(place);
  }

  // Removes and returns the entry of `id`, because the block is in the cache again.
  std::optional<Value> Take(const BlockId& id) {
    const auto found = places_.find(id);
    if (found == places_.end()) return std::nullopt;
    const Value value = records_[*found].value;
    places_.erase(found);
    return value;
  }

  size_t size() const { return places_.size(); }

 private:
  struct Record {
    BlockId id;
    Value value{};
  };
  using Records = std::deque<Record>;
  // A place is looked up by the id in its record, so the set costs 5 bytes for each slot.
  struct Hash {
    using is_transparent = void;
    size_t operator()(const BlockId& id) const { return absl::HashOf(id); }
    size_t operator()(uint32_t place) const { return absl::HashOf((*records)[place].id); }
    const Records* records;
  };
  struct Equal {
    using is_transparent = void;
    bool operator()(uint32_t a, uint32_t b) const { return a == b; }
    bool operator()(uint32_t place, const BlockId& id) const { return (*records)[place].id == id; }
    bool operator()(const BlockId& id, uint32_t place) const { return (*records)[place].id == id; }
    const Records* records;
  };

  // The record's block may have been taken, or evicted again to another place, since.
  void Forget(uint32_t place) {
    const auto found = places_.find(records_[place].id);
    if (found != places_.end() && *found == place) places_.erase(found);
  }

  const size_t limit_;
  uint32_t next_ = 0;  // the place of the next record: the oldest one, once there are `limit_`
  Records records_;    // a ring
  absl::flat_hash_set<uint32_t, Hash, Equal> places_{0, Hash{&records_}, Equal{&records_}};
};

}  // namespace penstock
