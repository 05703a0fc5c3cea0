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

// Chunked prefill, shortest slack first: the prompt whose deadline, less the time that its
// uncomputed tokens will take, comes first. A prompt without a deadline gets one from its age, so
// that none starves. Pure: no clock, no I/O, no lock.
class PrefillScheduler {
 public:
  struct Prompt {
    uint64_t id = 0;
    int32_t tokens = 0;
    TimePoint arrival;
    TimePoint deadline = TimePoint::max();
  };

  void Add(const Prompt& prompt);
  void Remove(uint64_t id);

  // Chunks of at most `tokens_max` tokens in all, never two of one prompt. A prompt not begun yet
  // is begun only if `begin` says so (its blocks are there); else later ones get their chance. What
  // `begin` says is how many of its first tokens need not be computed: less than all.
  using Begin = std::function<std::optional<int32_t>(uint64_t id)>;
  std::vector<PrefillChunk> Next(int32_t tokens_max, const Begin& begin);

  // A measured rate replaces the first guess; it decides how much a long rest shortens the slack.
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

  std::vector<Waiting> waiting_;
  Duration token_time_ = std::chrono::microseconds(500);
};

}  // namespace penstock
