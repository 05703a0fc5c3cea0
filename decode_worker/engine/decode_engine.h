#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/progress.h"
#include "decode_worker/engine/choice_freezes.h"
#include "decode_worker/engine/decode_job.h"
#include "decode_worker/engine/decode_sequence.h"
#include "decode_worker/engine/local_prefills.h"
#include "decode_worker/engine/preemption.h"
#include "decode_worker/engine/running_sequences.h"
#include "decode_worker/engine/speculator.h"
#include "model/forward/model_runner.h"
#include "worker/engine/mailbox.h"
#include "worker/engine/step_outputs.h"

namespace penstock {

// This room (decode_worker/engine) turns KV into tokens: admission, continuous batching,
// speculation, beam search, preemption and freezes for moves. It knows a session as tokens, KV
// pages and sampling parameters. It does not know text, clients, placement, or the services and
// streams around it.

// The parts that a DecodeEngine uses. All outlive the engine.
struct DecodeParts {
  ModelRunner& runner;
  BlockPool& pool;
  KvCacheManager& cache;
  TieredStore& store;  // keeps preempted sequences
  const Clock& clock;
  DraftModel* draft = nullptr;  // guesses tokens; null: there is none
  MtpDrafter* mtp = nullptr;    // likewise
};

// Turns KV into tokens by continuous batching over its sessions. Its own thread owns every
// sequence; other threads send it messages.
class DecodeEngine {
 public:
  struct Options {
    size_t batch_max = 64;                                // sequences a step
    size_t sessions_max = 1;                              // at once; callers keep to it
    int32_t prefill_tokens = 64;                          // of local prefills in a step
    Duration idle_beat = std::chrono::milliseconds(200);  // longest time between two turns
    Progress* progress = nullptr;  // beats at every turn; outlives the engine
    // Speculation: the tokens of a sequence, and of a step, that are guessed and checked. The
    // step's are rows that the runner has room for. 0: none.
    int32_t draft_tokens = 0;
    int32_t draft_rows = 0;
    bool ngrams = true;          // guess from the sequence's own tokens
    bool random_drafts = false;  // for tests: check any number of guesses
    // Called when no session is preempted any more, so that new ones may be admitted. On the engine
    // thread; may be empty.
    std::function<void()> on_room;
    // Called once for every turn, when the sinks have all tokens of its step: at its end, or while
    // a GPU computes the step of the next one. On the engine thread; may be empty.
    std::function<void()> on_turn;
  };

  DecodeEngine(const DecodeParts& parts, Options options);
  ~DecodeEngine();  // Stop()s.

  void Start();
  // Ends every session with CANCELLED and joins the thread.
  void Stop();

  // Any thread.
  void Add(DecodeJob job);
  // Drops a session without a call of its sink. Unknown keys are ignored.
  void Cancel(const HandoffKey& key);
  // Freezes a choice between two steps, once its KV is in pages, until the matching Unfreeze. The
  // sink is called once. NOT_FOUND: the choice has ended; UNAVAILABLE: the engine has stopped.
  void Freeze(FreezeRequest request);
  void Unfreeze(const UnfreezeRequest& request);

  int64_t running() const {
    return sequences_open_;
  }  // sequences, with preempted ones and local prefills
  int64_t preempted() const { return sessions_preempted_; }          // sessions
  int64_t preemptions() const { return preemption_.preemptions(); }  // since the start
  int64_t steps() const { return steps_; }
  // Since the start, of tokens that selected: those that they attended to, and those before them.
  int64_t selected_tokens() const { return selected_tokens_; }
  int64_t selectable_tokens() const { return selectable_tokens_; }
  // Since the start, of sequences that are evicted while decoding.
  int64_t decode_evicted_tokens() const { return decode_evicted_tokens_; }
  int64_t compactions() const { return compactions_; }
  // Tokens that were guessed and checked, and those of them that were right, since the start.
  int64_t drafted(Drafter by) const { return speculator_.checked(by); }
  int64_t accepted(Drafter by) const { return speculator_.right(by); }
  int64_t drafted() const {
    return drafted(Drafter::kNgram) + drafted(Drafter::kModel) + drafted(Drafter::kMtp);
  }
  int64_t accepted() const {
    return accepted(Drafter::kNgram) + accepted(Drafter::kModel) + accepted(Drafter::kMtp);
  }

 private:
  void Run();
  void BeatOnce();
  void EndTurn();
  void TellTurn();
  bool GoesOn() const;  // the next turn computes a step
  void TakeMail();
  Duration Patience() const;
  void AwaitRoom(uint64_t freed_count);
  std::function<void()> Waker() const;  // wakes the engine
  void Begin(DecodeJob job);
  int64_t KeepPrompt(DecodeJob& job);
  void Decode(DecodeJob job);
  void AdvancePrefill(const StepOutput& output);
  void Drop(const HandoffKey& key);
  bool Step();  // false when no sequence had room for its next token
  std::vector<uint64_t> NextBatch();
  absl::Status Compute(std::span<const uint64_t> batch, bool prefill);
  void ComputeAlone(std::span<const uint64_t> batch, bool prefill);
  void AddRows(DecodeSequence& sequence, std::vector<SequenceStep>& steps);
  void Advance(DecodeSequence& sequence, size_t first_output);
  std::optional<v1::TokenOut> TakeToken(DecodeSequence& sequence, const StepOutput& output);
  uint32_t CountAttended(const DecodeSequence& sequence);
  void TellTokens(DecodeSequence& sequence, std::vector<v1::TokenOut> tokens);
  void Enter(std::vector<DecodeSequence> choices);
  bool Grow(DecodeSequence& sequence, int32_t more = 1);  // room for one more token, or for `more`
  // Raises the session's credit to `blocks` blocks. Returns false if there are none left.
  bool TakeGrowth(DecodeSession& session, int64_t blocks);
  void Finish(DecodeSequence& sequence);

  // decode_windows.cc: models whose attention has a window.
  void PassWindow(DecodeSequence& sequence);
  void HoldRows(DecodeSequence& sequence);
  void Exchange(DecodeSession& session, std::vector<BlockRef> passed);

  // decode_evictions.cc: sequences that are evicted while decoding.
  bool FitLimit(DecodeSequence& sequence, int32_t more);
  bool TakeAgain(const DecodeSequence& sequence, int32_t more);
  bool Compact(DecodeSequence& sequence);
  void KeepBlocks(DecodeSequence& sequence, size_t kept, const std::vector<bool>& shared);
  std::vector<bool> SharedBlocks(const DecodeSequence& sequence);
  struct Observation {
    std::vector<RowRange> rows;                                 // StepArgs::observed
    std::function<void(int32_t, View<const float, 2>)> take{};  // StepArgs::on_queries
  };
  Observation ObservationOf(std::span<const uint64_t> batch);
  void AddScores(DecodeSequence& sequence, int32_t layer, View<const float, 2> queries);

  // decode_beams.cc: beam search.
  void Search(DecodeJob job);
  void RankBeam(DecodeSequence& beam, const StepOutput& output);
  void StepBeams(const std::shared_ptr<DecodeSession>& session);
  void EndSearch(DecodeSession& session);

  void Resume();
  void TellRoom(bool full) const;
  void CountSequences();
  void Keep(DecodeSequence& sequence);  // caches its blocks for the next turn of the conversation
  void End(uint64_t id, bool keep = true);  // `keep`: cache its blocks
  void Fail(HandoffKey key, const absl::Status& status);
  void EndAll(const absl::Status& status);

  BlockPool& pool_;
  KvCacheManager& cache_;
  const Clock& clock_;
  const std::optional<EvictionAttention> attention_;  // nullopt: no sequence evicts
  const bool beside_;                                 // the thread is free while a step is computed
  const Options options_;
  // Shared with callbacks, which may come after the engine's end.
  const std::shared_ptr<Mailbox<DecodeJob>> mailbox_;
  std::thread thread_;
  std::atomic<int64_t> sequences_open_{0};
  std::atomic<int64_t> steps_{0};
  std::atomic<int64_t> sessions_preempted_{0};
  std::atomic<int64_t> selected_tokens_{0};
  std::atomic<int64_t> selectable_tokens_{0};
  std::atomic<int64_t> decode_evicted_tokens_{0};
  std::atomic<int64_t> compactions_{0};

  // Used by the engine thread only, but for what its parts say of themselves.
  RunningSequences running_;
  Preemption preemption_;
  ChoiceFreezes freezes_;
  LocalPrefills prefills_;
  bool stalled_ = false;    // no sequence had room in the last step
  bool untold_ = false;     // on_turn is to be called for the last turn
  int32_t again_left_ = 0;  // tokens that the next step may still compute again
  FreedWaiters::Wait room_wait_;
  StepOutputs outputs_;
  Speculator speculator_;
};

}  // namespace penstock
