#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/clock.h"

namespace penstock {

// A part of a prompt to compute in the next step.
struct PrefillChunk {
  uint64_t prompt = 0;
  int32_t begin = 0;
  int32_t tokens = 0;
};

// Chunked prefill, earliest latest start first. The latest start of a prompt with a deadline is the
// deadline less the time that its uncomputed tokens will take. Without a deadline it is later the
// later the prompt came and the longer it is: short prompts pass long ones, but none starves.
// Pure: no clock, no I/O, no lock.
class PrefillScheduler {
 public:
  struct Prompt {
    uint64_t id = 0;
    int32_t tokens = 0;
    TimePoint arrival;
    TimePoint deadline = TimePoint::max();
    bool scored = false;  // every token has logits
    // A chunk ends behind the first `cut` tokens; 0: chunks end anywhere.
    int32_t cut = 0;
    // Further chunks end behind `next_cut` tokens, and behind every `cut_tokens` more; 0: anywhere.
    int32_t next_cut = 0;
    int32_t cut_tokens = 0;
    int32_t whole = 0;  // tokens before each of these ends that are in one chunk
    // Ranges of tokens, ascending, each of which is in one chunk.
    struct Range {
      int32_t begin = 0;
      int32_t end = 0;
    };
    std::vector<Range> undivided = {};
  };

  // The limit of tokens of scored prompts in one step: each has logits for the whole vocabulary.
  static constexpr int32_t kScoredTokensMax = 64;

  void Add(const Prompt& prompt);
  void Remove(uint64_t id);

  // Chunks of at most `tokens_max` tokens in all, at most one for each prompt. `begin` is called
  // for a prompt before its first chunk. It returns the number of leading tokens that need no
  // compute, less than all, or nullopt if the prompt has no blocks yet; later prompts then go
  // first. `room` is called for a chunk, and returns the number of its tokens for which there are
  // blocks now; without any, later prompts go first. If it is empty, a prompt that has begun has
  // all its blocks.
  using Begin = std::function<std::optional<int32_t>(uint64_t id)>;
  using Room = std::function<int32_t(uint64_t id, int32_t first, int32_t tokens)>;
  std::vector<PrefillChunk> Next(int32_t tokens_max, const Begin& begin, const Room& room = {});

  // Replaces the assumed compute time of a token by a measured one.
  void SetTokenTime(Duration per_token) { token_time_ = per_token; }

  size_t size() const { return waiting_.size(); }
  int64_t tokens_waiting() const;

 private:
  struct Waiting {
    Prompt prompt;
    int32_t done = 0;
    bool begun = false;
  };
  TimePoint LatestStart(const Waiting& waiting) const;
  static int32_t ChunkTokens(const Waiting& waiting, int32_t tokens_max);

  std::vector<Waiting> waiting_;
  Duration token_time_ = std::chrono::microseconds(500);
};

}  // namespace penstock
