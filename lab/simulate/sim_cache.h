#pragma once

#include <absl/container/flat_hash_map.h>

#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

// A worker's cache as the simulator models it: least recently used block first, and of one prompt
// the last block first, so that a leaf goes before its parent.
class SimCache {
 public:
  explicit SimCache(size_t capacity) : capacity_(capacity) {}

  // Leading blocks that are there.
  size_t Match(std::span<const uint32_t> blocks) const;
  // All of them are there afterwards, but for what does not fit. What went is added to `evicted`.
  void Insert(std::span<const uint32_t> blocks, std::vector<uint32_t>& evicted);
  size_t size() const { return where_.size(); }

 private:
  struct Node {
    uint32_t block;
    uint32_t older;
    uint32_t newer;
  };
  static constexpr uint32_t kNone = ~0u;
  void Unlink(uint32_t node);
  void PutNewest(uint32_t node);

  const size_t capacity_;
  absl::flat_hash_map<uint32_t, uint32_t> where_;  // block to node
  std::vector<Node> nodes_;
  std::vector<uint32_t> free_;
  uint32_t oldest_ = kNone;
  uint32_t newest_ = kNone;
};

}  // namespace penstock
