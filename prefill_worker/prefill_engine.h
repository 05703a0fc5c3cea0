#pragma once

#include <atomic>
#include <deque>
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
#include "prefill_worker/prompt_eviction.h"
#include "worker/engine/mailbox.h"
#include "worker/engine/step_outputs.h"

namespace penstock {

// This room (prefill_worker) turns prompts into KV and first tokens, and hands the KV to decode
// workers. It knows one prompt at a time as tokens and block names. It does not know text, clients,
// placement, or how a decode worker continues; it never includes decode_worker.
//
// The engine computes chunks of prompts, and passes each group of layers to the sender while the
// next group computes. Its own thread owns every prompt; other threads send it messages.
class PrefillEngine {
 public:
  struct Options {
    int32_t chunk_tokens = 512;
    int32_t layers_per_group = 0;  // 0: chosen so that slabs reach 256 KiB
    size_t max_waiting = 256;      // prompts that wait or run
    // Prompts whose decode worker has not set blocks aside yet are computed ahead, but leave this
    // many blocks to prompts whose KV can be sent at once. It must be enough for the longest
    // prompt: otherwise prefill and decode workers could wait for each other for ever.
    int64_t blocks_kept_for_credited = 0;
    int64_t rows_kept_for_credited = 0;  // likewise, in a model with a window group
    bool random_chunks = false;          // for tests: cut prompts anywhere
    Progress* progress = nullptr;        // beats at every turn; outlives the engine
    // The time between beats of an idle engine, for the watchdog. No work waits for it.
    Duration idle_beat = std::chrono::milliseconds(200);
  };

  // All outlive the engine.
  PrefillEngine(ModelRunner& runner, BlockPool& pool, KvCacheManager& cache, KvSender& sender,
                const Clock& clock, Options options);
  ~PrefillEngine();  // Stop()s.

  void Start();
  // Fails every prompt with UNAVAILABLE and joins the thread.
  void Stop();

  // RESOURCE_EXHAUSTED beyond max_waiting prompts; the sink is then not called. Any thread.
  absl::Status Submit(PrefillJob job);
  // Drops a prompt without a call of its sink. Unknown keys are ignored. Any thread.
  void Cancel(const HandoffKey& key);
  // A decode worker has set blocks aside for a prompt, which may begin now. Any thread.
  void OnCredited() { mailbox_->Wake(); }

  int64_t prompts() const { return prompts_here_; }
  int64_t tokens_waiting() const { return tokens_waiting_; }
  int64_t steps() const { return steps_; }
  int64_t evicted_tokens() const { return evicted_tokens_; }  // since the start
  // Since the start, as in BlendResult of proto/worker.proto.
  int64_t blend_reused_tokens() const { return blend_reused_tokens_; }
  int64_t blend_recomputed_tokens() const { return blend_recomputed_tokens_; }
  int64_t blend_fallback_tokens() const { return blend_fallback_tokens_; }
  int64_t blend_filled_tokens() const { return blend_filled_tokens_; }

 private:
  struct Prompt {
    PrefillJob job;
    std::vector<BlockRef> blocks;
    std::vector<uint32_t> table;
    std::unique_ptr<PromptEviction> eviction = {};      // null: none
    std::unique_ptr<PromptBlend> blend = {};            // null: none
    std::optional<CacheAdmission> part_admission = {};  // of the blend's next part
    bool computes_part = false;                         // another prompt of the engine does
    std::optional<uint64_t> part_of = {};  // the prompt that this one is a part of; it has no sink
    TimePoint begun{};
    Duration compute{};  // its part, by tokens, of its steps' time
    CacheAccess access{};
    int32_t cached = 0;                   // tokens
    BlockCredit credit = {};              // for the rows, and for the blocks of later chunks
    OwedBlocks owed = {};                 // of a prompt that exchanges blocks
    size_t passed = 0;                    // leading blocks that its window has passed
    std::vector<float> hidden = {};       // of its last token; empty: not wanted
    std::vector<double> hidden_sum = {};  // of all tokens so far; empty: their mean is not wanted
    // The hidden state of the last token computed, which the MTP layer takes with the next token.
    // Zeros before the first, which may follow a cached prefix. Empty without such a layer.
    std::vector<float> mtp_hidden = {};
  };

  void Run();
  void TakeMail(Duration patience);
  std::function<void()> Waker() const;  // wakes the engine
  void Accept(PrefillJob job);
  void Drop(const HandoffKey& key);
  // Takes the prompt's blocks. Returns the number of cached tokens, or nullopt without blocks.
  std::optional<int32_t> Begin(uint64_t id);
  bool Admit(Prompt& prompt);
  static FirstTokensArgs FirstOf(const PrefillJob& job);
  void CacheFullBlocks(const PrefillChunk& chunk);  // makes full blocks visible to others
  // Windows (prefill_windows.cc).
  bool Exchanges(const Prompt& prompt) const;
  int32_t MakeRoom(uint64_t id, int32_t begin, int32_t tokens);
  void PassWindow(const PrefillChunk& chunk);
  void PassRows(const PrefillChunk& chunk);
  void Exchange(Prompt& prompt, std::vector<BlockRef> passed);
  bool Step();  // false when there was nothing to do
  absl::Status Compute(std::span<const PrefillChunk> chunks);
  bool EndsPrompt(const PrefillChunk& chunk) const;
  // Evictions (prefill_evictions.cc). True if the prompt's eviction needs the chunk's queries.
  bool Observes(const PrefillChunk& chunk) const;
  std::vector<RowRange> ObservedRows(std::span<const PrefillChunk> chunks) const;
  static void SetCuts(const PrefillJob& job, const PromptEviction& eviction,
                      PrefillScheduler::Prompt& scheduled);
  static bool Compacts(const Prompt& prompt);
  void Compact(const PrefillChunk& chunk);
  void ObserveLayer(std::span<const PrefillChunk> chunks, int32_t layer,
                    View<const float, 2> queries);
  void SendEvicted(const PrefillChunk& chunk, int32_t first_layer, int32_t last_layer);
  // Blends (prefill_blends.cc).
  void AdvanceBlends();
  bool AdvanceBlend(uint64_t id);
  bool AdmitPart(Prompt& prompt, const BlendPart& part);
  bool AdmitBlended(Prompt& prompt);
  void ComputePart(uint64_t id, const BlendPart& part);
  void TakePart(uint64_t id);
  void DropParts(uint64_t id);
  void ReportBlend(const Prompt& prompt, v1::FirstTokens& first);
  void AddBlended(const PrefillChunk& chunk, std::vector<SequenceStep>& steps);
  std::vector<PrefillChunk> PlainRuns(const PrefillChunk& chunk) const;
  int32_t BlendedRows(const PrefillChunk& chunk) const;
  int64_t BlendsWaiting() const;
  PrefillScheduler::Prompt ScheduledOf(uint64_t id, const Prompt& prompt) const;
  bool WantsFirst(const PrefillChunk& chunk) const;

  void AddSteps(const PrefillChunk& chunk, std::vector<SequenceStep>& steps);
  int32_t ScoredRows(const PrefillChunk& chunk) const;
  void SendLayers(std::span<const PrefillChunk> chunks, int32_t first_layer, int32_t last_layer);
  absl::Status SendScores(const PrefillChunk& chunk, size_t first_output);
  static void SendHiddenState(const Prompt& prompt);
  void Finish(Prompt& prompt, const StepOutput& output);
  void Fail(uint64_t id, const absl::Status& status);
  void Forget(uint64_t id);
  void CountCompute(std::span<const PrefillChunk> chunks, Duration per_token);
  void MeasureTokenTime(Duration measured);

  BlockPool& pool_;
  KvCacheManager& cache_;
  KvSender& sender_;
  const Clock& clock_;
  const Options options_;
  // Shared with callbacks that wake the engine and may be called when the engine is gone.
  const std::shared_ptr<Mailbox<PrefillJob>> mailbox_;
  std::thread thread_;
  std::atomic<int64_t> prompts_here_{0};
  std::atomic<int64_t> tokens_waiting_{0};
  std::atomic<int64_t> steps_{0};
  std::atomic<int64_t> evicted_tokens_{0};
  std::atomic<int64_t> blend_reused_tokens_{0};
  std::atomic<int64_t> blend_recomputed_tokens_{0};
  std::atomic<int64_t> blend_fallback_tokens_{0};
  std::atomic<int64_t> blend_filled_tokens_{0};

  // Used by the engine thread only.
  PrefillScheduler scheduler_;
  std::map<uint64_t, Prompt> prompts_;
  uint64_t next_id_ = 0;
  Duration token_time_{};
  StepOutputs outputs_;
  const std::optional<EvictionAttention> attention_;  // of a runner that can evict
  const std::optional<KeyRotations> rotations_;       // of a runner that can blend
  // Prompts to blend whose parts are not held yet. Only the first may hold some: two could wait for
  // each other's blocks.
  std::deque<uint64_t> blends_;
  const int32_t hidden_size_;
  const bool fills_mtp_;          // the runner has a layer for multi-token prediction
  bool refused_ = false;          // in this turn a prompt did not get its blocks
  FreedWaiters::Wait room_wait_;  // while prompts wait for blocks and nothing else is to do
  std::mt19937 random_{1};        // for random_chunks only
};

// The number of layers that are sent together: enough for slabs of 256 KiB at `chunk_tokens`, but
// at most half of the model's layers, so that sending overlaps with compute.
int32_t LayersPerGroup(const KvLayout& layout, int32_t chunk_tokens);

}  // namespace penstock
