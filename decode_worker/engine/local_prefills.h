#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "decode_worker/engine/decode_job.h"
#include "model/forward/model_runner.h"
#include "worker/engine/sampling_spec.h"

namespace penstock {

// A computed prompt: its job, ready to decode, and the first message to its sink.
struct FinishedPrefill {
  DecodeJob job;
  v1::FirstTokens first;
};

// Sessions whose prompts' last tokens are computed here, beside the running answers: each step
// computes some tokens of the oldest one. Used by the engine thread only.
class LocalPrefills {
 public:
  struct Options {
    int32_t chunk_tokens = 64;  // maximum in a step
    KvLayout layout;
    // The dimensions of the hidden states that the target's layer for multi-token prediction takes;
    // 0: there is no such layer.
    size_t mtp_hidden = 0;
  };
  LocalPrefills(const Options& options, const Clock& clock, KvCacheManager& cache)
      : options_(options), clock_(clock), cache_(cache) {}

  void Add(DecodeJob job);
  size_t size() const { return prompts_.size(); }
  bool empty() const { return prompts_.empty(); }

  // Takes the blocks of the next tokens of the oldest session, in a model with a window; false
  // while there is no room for them. Otherwise a session has all its blocks.
  bool MakeRoom();
  // The next tokens of the oldest session. Valid until Advance, Drop or TakeAll.
  SequenceStep Next();
  bool NextIsLast() const;              // Next completes the prompt
  std::vector<DrawSpec> Draws() const;  // of the first answer tokens, see FirstDraws
  // The tokens of Next are computed. `output` is the output of the last prompt token if Next
  // completed the prompt. If no token can be sampled, the session ends and its sink is called.
  std::optional<FinishedPrefill> Advance(const StepOutput& output);

  // Ends the oldest session with `status`, and calls its sink.
  void Fail(const absl::Status& status);
  // Drops the session, if it is here.
  void Drop(const HandoffKey& key);
  std::vector<DecodeJob> TakeAll();

 private:
  struct Prompt {
    DecodeJob job;
    std::vector<uint32_t> table;
    int32_t computed = 0;  // tokens, cached ones too
    size_t passed = 0;     // leading blocks that the window has passed
    OwedBlocks owed = {};
    std::optional<TimePoint> begun = {};
  };

  int32_t Tokens(const Prompt& prompt) const;  // of the next chunk
  static FirstTokensArgs FirstOf(const Prompt& prompt);
  void PassWindow(Prompt& prompt);
  void Exchange(Prompt& prompt, std::vector<BlockRef> passed);

  const Options options_;
  const Clock& clock_;
  KvCacheManager& cache_;
  std::deque<Prompt> prompts_;  // the oldest first
};

}  // namespace penstock
