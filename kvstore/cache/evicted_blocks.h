#pragma once

#include <absl/container/flat_hash_map.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "kvstore/names/block_hash.h"

namespace penstock {

// A bounded memory of evicted blocks (a "ghost" list): at most `limit` entries, and the oldest is
// forgotten first. One thread at a time.
template <class Value>
class EvictedBlocks {
 public:
  explicit EvictedBlocks(size_t limit) : limit_(limit) {}

  void Put(const BlockId& id, const Value& value) {
    entries_[id] = {value, ++puts_};
    order_.push_back({id, puts_});
    while (entries_.size() > limit_ || order_.size() > 2 * limit_ + 16) ForgetOldest();
  }

  // Removes and returns the entry of `id`, because the block is in the cache again.
  std::optional<Value> Take(const BlockId& id) {
    const auto found = entries_.find(id);
    if (found == entries_.end()) return std::nullopt;
    const Value value = found->second.value;
    entries_.erase(found);
    return value;
  }

  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    Value value{};
    uint64_t put = 0;
  };

  void ForgetOldest() {
    const auto [id, put] = order_.front();
    order_.pop_front();
    const auto found = entries_.find(id);
    if (found != entries_.end() && found->second.put == put) entries_.erase(found);
  }

  const size_t limit_;
  uint64_t puts_ = 0;
  absl::flat_hash_map<BlockId, Entry> entries_;
  // Insertion order; contains ids that were taken since.
  std::deque<std::pair<BlockId, uint64_t>> order_;
};

}  // namespace penstock
