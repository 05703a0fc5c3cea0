#include "prefill_worker/prefill_scheduler.h"

#include <algorithm>

namespace penstock {
namespace {

// A prompt without a deadline has this long and kLengthFactor times its compute time until its
// latest start. In `penstock simulate --rho 1.2` on a trace of conversations a factor of 2 had a
// shorter mean TTFT, and more requests within their SLO, than 1 (and a longer 99th percentile).
constexpr Duration kPatience = std::chrono::seconds(30);
constexpr int kLengthFactor = 2;

// The tokens behind the first `done` ones up to the next cut; nullopt: none is left.
std::optional<int32_t> TokensToCut(const PrefillScheduler::Prompt& prompt, int32_t done) {
  if (done < prompt.cut) return prompt.cut - done;
  if (prompt.cut_tokens == 0) return std::nullopt;
  const int32_t passed = done - prompt.next_cut;
  const int32_t left = passed < 0 ? -passed : prompt.cut_tokens - passed % prompt.cut_tokens;
  return done + left <= prompt.tokens ? std::optional(left) : std::nullopt;
}

// At most `tokens` tokens behind the first `done` ones, so that no undivided range is divided. No
// range contains `done`, unless it begins there.
int32_t TokensUndivided(const PrefillScheduler::Prompt& prompt, int32_t done, int32_t tokens) {
  for (const auto& range : prompt.undivided) {
    if (range.begin < done + tokens && done + tokens < range.end) return range.begin - done;
  }
  return tokens;
}

}  // namespace

void PrefillScheduler::Add(const Prompt& prompt) { waiting_.push_back({.prompt = prompt}); }

void PrefillScheduler::Remove(uint64_t id) {
  std::erase_if(waiting_, [id](const Waiting& waiting) { return waiting.prompt.id == id; });
}

TimePoint PrefillScheduler::LatestStart(const Waiting& waiting) const {
  const Prompt& prompt = waiting.prompt;
  const TimePoint by_age = prompt.arrival + kPatience + kLengthFactor * prompt.tokens * token_time_;
  if (prompt.deadline == TimePoint::max()) return by_age;
  return std::min(by_age, prompt.deadline - (prompt.tokens - waiting.done) * token_time_);
}

// The tokens of the next chunk; 0: those that must be in one chunk are more than `tokens_max`.
int32_t PrefillScheduler::ChunkTokens(const Waiting& waiting, int32_t tokens_max) {
  const Prompt& prompt = waiting.prompt;
  const int32_t most = std::min(tokens_max, prompt.tokens - waiting.done);
  const int32_t tokens = TokensUndivided(prompt, waiting.done, most);
  const std::optional<int32_t> left = TokensToCut(prompt, waiting.done);
  if (!left) return tokens;
  if (tokens >= *left) return *left;
  return std::min(tokens, std::max(0, *left - prompt.whole));
}

std::vector<PrefillChunk> PrefillScheduler::Next(int32_t tokens_max, const Begin& begin,
                                                 const Room& room) {
  std::stable_sort(waiting_.begin(), waiting_.end(), [this](const Waiting& a, const Waiting& b) {
    return LatestStart(a) < LatestStart(b);
  });
  std::vector<PrefillChunk> chunks;
  int32_t scored_max = kScoredTokensMax;
  for (Waiting& waiting : waiting_) {
    if (tokens_max == 0) break;
    if (waiting.prompt.scored && scored_max == 0) continue;
    if (!waiting.begun) {
      const std::optional<int32_t> done = begin(waiting.prompt.id);
      if (!done) continue;
      waiting.done = *done;
      waiting.begun = true;
    }
    int32_t tokens = ChunkTokens(waiting, tokens_max);
    if (tokens == 0) continue;
    if (waiting.prompt.scored) tokens = std::min(tokens, scored_max);
    if (room) tokens = room(waiting.prompt.id, waiting.done, tokens);
    if (tokens == 0) continue;
    if (waiting.prompt.scored) scored_max -= tokens;
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
