#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "decode_worker/engine/running_sequences.h"
#include "decode_worker/engine/swapped_session.h"

namespace penstock {

// Takes pages from the youngest session when the others need them, and gives them back as soon as
// it fits (docs/adr/0012-preempt-by-swapping.md). Used by the engine's thread, except where noted.
class Preemption {
 public:
  // All outlive the object. `wake` is called when the KV of a session has been restored, on any
  // thread, and may be called when the object is gone.
  struct Parts {
    BlockPool& pool;
    KvCacheManager& cache;
    TieredStore& store;  // keeps the preempted sessions' KV
    RunningSequences& running;
    std::function<void()> wake;
  };
  explicit Preemption(Parts parts) : parts_(std::move(parts)) {}

  // The blocks that the running sequences need within the steps of half a block. At least one while
  // any runs: a session that took the last one would be swapped in and out without a token of
  // either.
  int64_t GrowthAhead() const;

  void BeginTurn() { refused_ = false; }
  // The store had no slot for a session in this turn.
  bool refused() const { return refused_; }

  // Preempts the youngest session that can be swapped out, unless it is the only one or pages are
  // already coming free.
  void PreemptYoungest();
  // Resumes one session at a time, the oldest first, when it fits with one more block for each
  // choice. A session that is being swapped in is finished first, because it holds its pages
  // already. A session whose KV is lost gets the error.
  void ResumeOldest();
  void Drop(const HandoffKey& key);
  // Takes all sequences, without their KV.
  std::vector<DecodeSequence> TakeAll();

  bool empty() const { return sessions_.empty(); }
  int64_t sessions() const { return static_cast<int64_t>(sessions_.size()); }
  int64_t choices_open() const;
  bool Has(const HandoffKey& key) const;
  int64_t preemptions() const { return preemptions_; }  // since the start; any thread

 private:
  void BeginSwapIn(SwappedSession& session);

  const Parts parts_;
  std::map<uint64_t, std::unique_ptr<SwappedSession>> sessions_;  // by their first id
  bool refused_ = false;
  std::atomic<int64_t> preemptions_{0};
};

}  // namespace penstock
