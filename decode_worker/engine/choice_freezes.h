#pragma once

#include <vector>

#include "decode_worker/engine/freeze_queue.h"
#include "decode_worker/engine/preemption.h"
#include "decode_worker/engine/running_sequences.h"

namespace penstock {

// Freezes running choices while their KV goes to another worker. A choice rests as long as a freeze
// is in effect; a freeze of a preempted session waits until it runs again.
class ChoiceFreezes {
 public:
  // All outlive the object.
  ChoiceFreezes(BlockPool& pool, RunningSequences& running, const Preemption& preemption)
      : pool_(pool), running_(running), preemption_(preemption) {}

  void Add(FreezeQueue::Mail mail) { queue_.Add(std::move(mail)); }  // any thread
  // Serves what was added, between two steps. On the engine's thread.
  void Serve();

 private:
  bool Freeze(const FreezeRequest& request);  // false: the session is preempted now
  void Unfreeze(const UnfreezeRequest& end);

  BlockPool& pool_;
  RunningSequences& running_;
  const Preemption& preemption_;
  FreezeQueue queue_;
  std::vector<FreezeRequest> waiting_;  // for preempted sessions
};

}  // namespace penstock
