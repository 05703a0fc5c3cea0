#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "decode_worker/decode_job.h"
#include "model/forward/model_runner.h"
#include "worker/engine/sampling_spec.h"

namespace penstock {

// Sessions whose prompts' last tokens are computed here, beside the running answers: a few tokens
// of the oldest one in each step. The engine thread's own.
class LocalPrefills {
 public:
  // `chunk_tokens`: the most that a step computes.
  LocalPrefills(int32_t chunk_tokens, const Clock& clock)
      : chunk_tokens_(chunk_tokens), clock_(clock) {}

  void Add(DecodeJob job);
  size_t size() const { return prompts_.size(); }
  bool empty() const { return prompts_.empty(); }

  // The next tokens of the oldest one. Valid until Advance, Drop or TakeAll.
  SequenceStep Next();
  bool NextIsLast() const;              // the prompt's first tokens follow
  std::vector<DrawSpec> Draws() const;  // theirs, as FirstDraws
  // A prompt that is whole: its job, ready to decode, and what its sink is to hear first.
  struct Whole {
    DecodeJob job;
    v1::FirstTokens first;
  };
  // What Next gave is computed; `output` is of its last token, if that is the prompt's. Where no
  // token can be sampled, the session has ended and its sink was told.
  std::optional<Whole> Advance(const StepOutput& output);

  // Forgets the session, if it is here.
  void Drop(const HandoffKey& key);
  std::vector<DecodeJob> TakeAll();

 private:
  struct Prompt {
    DecodeJob job;
    std::vector<uint32_t> table;
    int32_t computed = 0;  // tokens, cached ones too
    std::optional<TimePoint> begun = {};
  };

  int32_t Tokens(const Prompt& prompt) const;  // of the next chunk
  static FirstTokensArgs FirstOf(const Prompt& prompt);

  const int32_t chunk_tokens_;
  const Clock& clock_;
  std::deque<Prompt> prompts_;  // the oldest first
};

}  // namespace penstock
