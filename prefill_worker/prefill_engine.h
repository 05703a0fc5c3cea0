#pragma once

#include <atomic>
#include <map>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "base/progress.h"
#include "kvstore/handoff/kv_sender.h"
#include "model/forward/model_runner.h"
#include "prefill_worker/prefill_job.h"
#include "prefill_worker/prefill_scheduler.h"
#include "worker/engine/mailbox.h"
#include "worker/engine/step_outputs.h"

namespace penstock {

// Turns prompts into KV and first tokens, and announces each group of layers to the sender while
// the next ones compute. Its own thread owns every prompt; others send it messages.
class PrefillEngine {
 public:
  struct Options {
    int32_t chunk_tokens = 512;
    int32_t layers_per_group = 0;  // 0: chosen so that slabs reach 256 KiB
    size_t max_waiting = 256;      // prompts that wait or run
    // Prompts whose decode worker has no room yet are computed ahead, but leave this many blocks to
    // those whose KV can leave at once. Enough for the longest prompt, or two workers of each kind
    // could wait for each other for ever.
    int64_t blocks_kept_for_credited = 0;
    bool random_chunks = false;    // for tests: cut prompts anywhere
    Progress* progress = nullptr;  // beats at every turn; outlives the engine
    // Between beats of an engine without work. Nothing waits for it.
    Duration idle_beat = std::chrono::milliseconds(200);
  };

  // All outlive the engine.
  PrefillEngine(ModelRunner& runner, BlockPool& pool, KvCacheManager& cache, KvSender& sender,
                const Clock& clock, Options options);
  ~PrefillEngine();  // Stop()s.

  void Start();
  // Fails every prompt with UNAVAILABLE and joins the thread.
  void Stop();

  // RESOURCE_EXHAUSTED when too many prompts are here; the sink is then not called. Any thread.
  absl::Status Submit(PrefillJob job);
  // Drops a prompt without a word to its sink. Unknown keys are ignored. Any thread.
  void Cancel(const HandoffKey& key);
  // A decode worker has set blocks aside for a prompt, which may begin now. Any thread.
  void OnCredited() { mailbox_->Wake(); }

  int64_t prompts() const { return prompts_here_; }
  int64_t tokens_waiting() const { return tokens_waiting_; }
  int64_t steps() const { return steps_; }

 private:
  struct Prompt {
    PrefillJob job;
    std::vector<BlockRef> blocks;
    std::vector<uint32_t> table;
    TimePoint begun{};
    std::optional<CacheAdmission> admission{};  // it has its blocks, some perhaps on their way
    CacheAccess access{};
    int32_t cached = 0;  // tokens
  };

  void Run();
  void TakeMail(Duration patience);
  std::function<void()> Waker() const;  // wakes the engine
  void Accept(PrefillJob job);
  void Drop(const HandoffKey& key);
  // Takes the prompt's blocks, if they are there: cached ones first. How many tokens those hold.
  std::optional<int32_t> Begin(uint64_t id);
  bool Admit(Prompt& prompt);
  int64_t CachedMost(const PrefillJob& job) const;  // blocks
  static FirstTokensArgs FirstOf(const PrefillJob& job);
  void Keep(const PrefillChunk& chunk);  // blocks that are full now: others may use them
  bool Step();                           // false when there was nothing to do
  absl::Status Compute(std::span<const PrefillChunk> chunks);
  void Announce(std::span<const PrefillChunk> chunks, int32_t first_layer, int32_t last_layer);
  void Finish(Prompt& prompt, const StepOutput& output);
  void Fail(uint64_t id, const absl::Status& status);
  void Forget(uint64_t id);
  void MeasureTokenTime(Duration step, int64_t tokens);

  BlockPool& pool_;
  KvCacheManager& cache_;
  KvSender& sender_;
  const Clock& clock_;
  const Options options_;
  // Shared with callbacks that wake the engine and may come when it is gone.
  const std::shared_ptr<Mailbox<PrefillJob>> mailbox_;
  std::thread thread_;
  std::atomic<int64_t> prompts_here_{0};
  std::atomic<int64_t> tokens_waiting_{0};
  std::atomic<int64_t> steps_{0};

  // The engine thread's own.
  PrefillScheduler scheduler_;
  std::map<uint64_t, Prompt> prompts_;
  uint64_t next_id_ = 0;
  Duration token_time_{};
  StepOutputs outputs_;
  bool refused_ = false;          // in this turn a prompt did not get its blocks
  FreedWaiters::Wait room_wait_;  // while prompts wait for blocks and nothing else is to do
  std::mt19937 random_{1};        // for random_chunks only
};

// Layers that travel together: enough for slabs of 256 KiB at `chunk_tokens`, but at most half of
// the model's, so that something is on its way while the rest computes.
int32_t LayersPerGroup(const KvLayout& layout, int32_t chunk_tokens);

}  // namespace penstock
