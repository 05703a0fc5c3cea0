#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "kvstore/cache/block_pool.h"
#include "kvstore/manager/kv_cache_manager.h"
#include "kvstore/names/handoff_key.h"

namespace penstock {

// The requester of a freeze. Called on the engine thread; must not block.
class FreezeSink {
 public:
  virtual ~FreezeSink() = default;
  // The choice is frozen. `blocks` have the KV of all requested tokens, and nothing is written into
  // them until Unfreeze.
  virtual void OnFrozen(std::vector<BlockRef> blocks) = 0;
  virtual void OnRefused(absl::Status status) = 0;
};

// Freezes one running choice. The tokens are those that the requester knows.
struct FreezeRequest {
  HandoffKey freeze;  // names this freeze
  HandoffKey key;
  uint32_t choice = 0;
  std::vector<uint32_t> tokens;  // whose KV is needed: prompt and answer without the last token
  PromptBlocks prompt;           // the names of the blocks of `tokens`
  uint32_t last_token = 0;       // of the answer; follows `tokens`
  std::shared_ptr<FreezeSink> sink;
};

struct UnfreezeRequest {
  HandoffKey freeze;
  HandoffKey key;
  uint32_t choice = 0;
};

// Requests from other threads to the engine, in order. Every Move call adds at most two.
class FreezeQueue {
 public:
  using Mail = std::variant<FreezeRequest, UnfreezeRequest>;

  void Add(Mail mail) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    mail_.push_back(std::move(mail));
  }
  std::vector<Mail> Take() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return std::exchange(mail_, {});
  }

 private:
  Mutex mutex_;
  std::vector<Mail> mail_ GUARDED_BY(mutex_);
};

}  // namespace penstock
