#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "router/index/prefix_run.h"

namespace penstock {

// The length of one prompt's prefix that each worker has cached, without gaps. Reused from look-up
// to look-up, so that a look-up allocates nothing. One thread.
class PrefixMatches {
 public:
  struct Hit {
    uint32_t blocks = 0;                          // leading blocks of the prompt
    std::array<uint32_t, kBlockTiers> in_tier{};  // the same by tier; the sum is `blocks`
    bool operator==(const Hit&) const = default;
  };

  // The workers with at least one block, in no order.
  std::span<const uint16_t> workers() const { return workers_; }
  const Hit& of(uint32_t worker) const {
    static const Hit kNone;
    return worker < hits_.size() ? hits_[worker] : kNone;
  }
  void Clear() {
    for (const uint16_t worker : workers_) hits_[worker] = {};
    workers_.clear();
  }

  // Adds the holdings of `run` for its `count` blocks from `offset` on, the first of which is the
  // prompt's block `depth`. False when no worker has all blocks of the prompt so far.
  bool Add(const PrefixRun& run, uint32_t offset, uint32_t count, uint32_t depth);

 private:
  bool AddWorker(uint16_t worker, std::span<const RunHolding> of_worker, uint32_t count,
                 uint32_t depth);

  std::vector<Hit> hits_;  // by worker
  std::vector<uint16_t> workers_;
};

}  // namespace penstock
