#include "prefill_worker/prefill_scheduler.h"

#include <algorithm>

namespace penstock {
namespace {

// A prompt without a deadline gets one this long after its arrival.
constexpr Duration kPatience = std::chrono::seconds(30);

}  // namespace

void PrefillScheduler::Add(const Prompt& prompt) { waiting_.push_back({.prompt = prompt}); }

void PrefillScheduler::Remove(uint64_t id) {
  std::erase_if(waiting_, [id](const Waiting& waiting) { return waiting.prompt.id == id; });
}

TimePoint PrefillScheduler::LatestStart(const Waiting& waiting) const {
  const Prompt& prompt = waiting.prompt;
  const TimePoint due = std::min(prompt.deadline, prompt.arrival + kPatience);
  return due - (prompt.tokens - waiting.done) * token_time_;
}

std::vector<PrefillChunk> PrefillScheduler::Next(int32_t tokens_max, const Begin& begin) {
  std::stable_sort(waiting_.begin(), waiting_.end(), [this](const Waiting& a, const Waiting& b) {
    return LatestStart(a) < LatestStart(b);
  });
  std::vector<PrefillChunk> chunks;
  for (Waiting& waiting : waiting_) {
    if (tokens_max == 0) break;
    if (!waiting.begun) {
      const std::optional<int32_t> done = begin(waiting.prompt.id);
      if (!done) continue;
      waiting.done = *done;
      waiting.begun = true;
    }
    const int32_t tokens = std::min(tokens_max, waiting.prompt.tokens - waiting.done);
    chunks.push_back({.prompt = waiting.prompt.id, .begin = waiting.done, .tokens = tokens});
    waiting.done += tokens;
    tokens_max -= tokens;
  }
  std::erase_if(waiting_,
                [](const Waiting& waiting) { return waiting.done == waiting.prompt.tokens; });
  return chunks;
}

int64_t PrefillScheduler::tokens_waiting() const {
  int64_t tokens = 0;
  for (const Waiting& waiting : waiting_) tokens += waiting.prompt.tokens - waiting.done;
  return tokens;
}

}  // namespace penstock
