#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "base/progress.h"
#include "decode_worker/decode_job.h"
#include "decode_worker/decode_scheduler.h"
#include "decode_worker/decode_sequence.h"
#include "model/model_runner.h"
#include "worker/mailbox.h"

namespace penstock {

// Turns KV into tokens: continuous batching over the sessions it was given. Its own thread owns
// every sequence; others send it messages.
class DecodeEngine {
 public:
  struct Options {
    size_t batch_max = 64;         // sequences a step
    size_t sessions_max = 1;       // that can be here at once; the callers keep to it
    Progress* progress = nullptr;  // beats at every turn; outlives the engine
  };

  // `runner`, `pool` and `cache` outlive the engine.
  DecodeEngine(ModelRunner& runner, BlockPool& pool, WorkerCache& cache, Options options);
  ~DecodeEngine();  // Stop()s.

  void Start();
  // Ends every session with CANCELLED and joins the thread.
  void Stop();

  // Any thread.
  void Add(DecodeJob job);
  // Drops a session without a word to its sink. Unknown keys are ignored.
  void Cancel(const HandoffKey& key);

  int64_t running() const { return running_; }  // sequences
  int64_t steps() const { return steps_; }

 private:
  void Run();
  void TakeMail();
  void Begin(DecodeJob job);
  void Drop(const HandoffKey& key);
  void Step();
  void Advance(DecodeSequence& sequence, std::span<float> logits);
  void Keep(DecodeSequence& sequence);      // the next turn finds it
  void End(uint64_t id, bool keep = true);  // `keep`: its KV may enter the cache
  void Fail(HandoffKey key, const absl::Status& status);
  void EndAll(const absl::Status& status);

  ModelRunner& runner_;
  BlockPool& pool_;
  WorkerCache& cache_;
  const Options options_;
  Mailbox<DecodeJob> mailbox_;
  std::thread thread_;
  std::atomic<int64_t> running_{0};
  std::atomic<int64_t> steps_{0};

  // The engine thread's own.
  DecodeScheduler scheduler_;
  std::map<uint64_t, DecodeSequence> sequences_;
  uint64_t next_id_ = 0;
  std::vector<float> logits_;
};

}  // namespace penstock
