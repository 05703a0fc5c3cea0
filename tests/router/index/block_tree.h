#pragma once

#include <cstring>
#include <random>
#include <vector>

#include "kvstore/names/block_hash.h"

namespace penstock {

// A growing tree of block ids: each path is a prompt that shares a beginning with an earlier one.
// Ids are numbers in disguise, which is all that an index may assume of them.
class BlockTree {
 public:
  explicit BlockTree(uint64_t seed) : random_(seed), salt_(seed) {}

  // Adds a path with `fresh` blocks of its own, behind a random part of another. Returns its
  // number.
  size_t Grow(size_t fresh) {
    std::vector<BlockId> path;
    if (!paths_.empty()) {
      const std::vector<BlockId>& trunk = paths_[random_() % paths_.size()];
      const size_t shared = random_() % (trunk.size() + 1);
      path.assign(trunk.begin(), trunk.begin() + static_cast<std::ptrdiff_t>(shared));
    }
    for (size_t i = 0; i < fresh; ++i) path.push_back(Next());
    paths_.push_back(std::move(path));
    return paths_.size() - 1;
  }
  size_t size() const { return paths_.size(); }
  const std::vector<BlockId>& Path(size_t number) const { return paths_[number]; }

 private:
  BlockId Next() {
    BlockId id;
    ++next_;
    std::memcpy(id.bytes.data(), &next_, sizeof(next_));
    std::memcpy(id.bytes.data() + 8, &salt_, sizeof(salt_));
    return id;
  }

  std::mt19937_64 random_;
  uint64_t salt_;
  uint64_t next_ = 0;
  std::vector<std::vector<BlockId>> paths_;
};

}  // namespace penstock
