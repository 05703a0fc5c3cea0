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

// Who wants a sequence to stand still. Called on the engine thread; must not block.
class HoldSink {
 public:
  virtual ~HoldSink() = default;
  // It stands still; `blocks` have the KV of all tokens that were named. Until Unfreeze nothing is
  // written into them.
  virtual void OnHeld(std::vector<BlockRef> blocks) = 0;
  virtual void OnRefused(absl::Status status) = 0;
};

// One choice of a session that is running here, by its caller's account.
struct FreezeRequest {
  HandoffKey holder;  // names the order
  HandoffKey key;
  uint32_t choice = 0;
  std::vector<uint32_t> tokens;  // whose KV is wanted: prompt and answer so far, without the last
  PromptBlocks prompt;           // the names of the blocks of `tokens`
  uint32_t last_token = 0;       // of the answer, behind `tokens`
  std::shared_ptr<HoldSink> sink;
};

struct UnfreezeRequest {
  HandoffKey holder;
  HandoffKey key;
  uint32_t choice = 0;
};

// What other threads tell the engine of holds, in order. As many as there are calls.
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
