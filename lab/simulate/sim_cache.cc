#include "lab/simulate/sim_cache.h"

namespace penstock {

size_t SimCache::Match(std::span<const uint32_t> blocks) const {
  size_t count = 0;
  while (count < blocks.size() && where_.contains(blocks[count])) ++count;
  return count;
}

void SimCache::Insert(std::span<const uint32_t> blocks, std::vector<uint32_t>& evicted) {
  for (size_t i = blocks.size(); i-- > 0;) {
    const auto [found, is_new] = where_.try_emplace(blocks[i], 0);
    if (!is_new) {
      Unlink(found->second);
    } else if (free_.empty()) {
      found->second = static_cast<uint32_t>(nodes_.size());
      nodes_.push_back({blocks[i], kNone, kNone});
    } else {
      found->second = free_.back();
      free_.pop_back();
      nodes_[found->second].block = blocks[i];
    }
    PutNewest(found->second);
  }
  while (where_.size() > capacity_) {
    const uint32_t node = oldest_;
    Unlink(node);
    evicted.push_back(nodes_[node].block);
    where_.erase(nodes_[node].block);
    free_.push_back(node);
  }
}

void SimCache::Unlink(uint32_t number) {
  const Node& node = nodes_[number];
  (node.older == kNone ? oldest_ : nodes_[node.older].newer) = node.newer;
  (node.newer == kNone ? newest_ : nodes_[node.newer].older) = node.older;
}

void SimCache::PutNewest(uint32_t number) {
  nodes_[number].older = newest_;
  nodes_[number].newer = kNone;
  (newest_ == kNone ? oldest_ : nodes_[newest_].newer) = number;
  newest_ = number;
}

}  // namespace penstock
