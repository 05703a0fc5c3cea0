#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "base/progress.h"
#include "decode_worker/decode_job.h"
#include "decode_worker/decode_scheduler.h"
#include "decode_worker/decode_sequence.h"
#include "decode_worker/local_prefills.h"
#include "decode_worker/swapped_session.h"
#include "model/forward/model_runner.h"
#include "worker/engine/mailbox.h"
#include "worker/engine/step_outputs.h"

namespace penstock {

// What a DecodeEngine stands on; all outlive it.
struct DecodeParts {
  ModelRunner& runner;
  BlockPool& pool;
  KvCacheManager& cache;
  TieredStore& store;  // where preempted sequences go
  const Clock& clock;
};

// Turns KV into tokens: continuous batching over the sessions it was given. Its own thread owns
// every sequence; others send it messages.
class DecodeEngine {
 public:
  struct Options {
    size_t batch_max = 64;         // sequences a step
    size_t sessions_max = 1;       // that can be here at once; the callers keep to it
    int32_t prefill_tokens = 64;   // of prompts, computed here, a step
    Progress* progress = nullptr;  // beats at every turn; outlives the engine
    // No session is preempted any more: others may be admitted. Called on the engine thread; may be
    // empty.
    std::function<void()> on_room;
    // After every turn: what sinks were told is what one step gave. Called on the engine thread;
    // may be empty.
    std::function<void()> on_turn;
  };

  DecodeEngine(const DecodeParts& parts, Options options);
  ~DecodeEngine();  // Stop()s.

  void Start();
  // Ends every session with CANCELLED and joins the thread.
  void Stop();

  // Any thread.
  void Add(DecodeJob job);
  // Drops a session without a word to its sink. Unknown keys are ignored.
  void Cancel(const HandoffKey& key);
  // Makes a choice stand still, once it is in its pages and at the end of a step, until a Unfreeze
  // that follows. The sink hears of it once. NOT_FOUND: it has ended; UNAVAILABLE: all have.
  void Hold(FreezeRequest order) { holds_.Add(std::move(order)); }
  void Unfreeze(const UnfreezeRequest& end) { holds_.Add(end); }

  int64_t running() const { return running_; }          // sequences, preempted ones and prompts too
  int64_t preempted() const { return preempted_now_; }  // sessions
  int64_t preemptions() const { return preemptions_; }  // since the start
  int64_t steps() const { return steps_; }

 private:
  void Run();
  void EndTurn();
  void TakeMail();
  Duration Patience() const;
  void Begin(DecodeJob job);
  int64_t KeepPrompt(DecodeJob& job);
  void Decode(DecodeJob job);
  void AdvancePrefill(const StepOutput& output);
  void Drop(const HandoffKey& key);
  bool Step();  // false when no sequence had room to go on
  void Advance(DecodeSequence& sequence, const StepOutput& output);
  void Enter(std::vector<DecodeSequence> choices);
  bool Grow(DecodeSequence& sequence);  // room for one more token
  int64_t GrowthAhead() const;
  void PreemptYoungest();
  void ResumeOldest();
  void BeginSwapIn(SwappedSession& swapped);
  void CountSequences();
  void TakeHolds();
  bool ServeFreeze(const FreezeRequest& order);  // false: it is preempted just now
  void EndHold(const UnfreezeRequest& end);
  DecodeSequence* Find(const HandoffKey& key, uint32_t choice);
  void Keep(DecodeSequence& sequence);      // the next turn finds it
  void End(uint64_t id, bool keep = true);  // `keep`: its KV may enter the cache
  void Fail(HandoffKey key, const absl::Status& status);
  void EndAll(const absl::Status& status);

  BlockPool& pool_;
  KvCacheManager& cache_;
  TieredStore& store_;
  const Options options_;
  Mailbox<DecodeJob> mailbox_;
  FreezeQueue holds_;
  std::thread thread_;
  std::atomic<int64_t> running_{0};
  std::atomic<int64_t> steps_{0};
  std::atomic<int64_t> preempted_now_{0};
  std::atomic<int64_t> preemptions_{0};

  // The engine thread's own.
  DecodeScheduler scheduler_;
  std::map<uint64_t, DecodeSequence> sequences_;                   // by id: the oldest first
  std::map<uint64_t, std::unique_ptr<SwappedSession>> preempted_;  // by their first id
  LocalPrefills prefills_;
  std::vector<FreezeRequest> holds_waiting_;  // for preempted sequences
  uint64_t next_id_ = 0;
  bool stalled_ = false;  // the last step had no room for anybody
  StepOutputs outputs_;
};

}  // namespace penstock
