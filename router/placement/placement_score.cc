#include "router/placement/placement_score.h"

#include <algorithm>

namespace penstock {
namespace {

// Work above the mean that is still chance: a few prompts.
constexpr double kLastingFreeMs = 500;

bool HasQueue(const Candidate& worker) { return worker.waiting < kMaxWaitingPerWorker; }

PlacementTerms PrefillTerms(const Candidate& worker, const PlacementInput& input) {
  const CachedPrefix& cached = worker.cached;
  PlacementTerms terms{
      .queue_ms = worker.queue_ms,
      .prefill_ms = ExpectedPrefillMs(worker, input.need, cached.tokens),
      .restore_ms = worker.dram.Ms(cached.dram_tokens) + worker.nvme.Ms(cached.nvme_tokens),
      .transfer_ms = worker.link.Ms(input.need.prompt_tokens)};
  return terms;
}

struct Fetched {
  PlacementTerms terms;
  PrefixFetch fetch;
};

// As `own`, the terms without it, but with all that `source` has brought over first, or computed
// when it proves not to be there.
Fetched FetchTerms(const Candidate& worker, const PlacementTerms& own, const PrefixSource& source,
                   const PlacementNeed& need) {
  const uint32_t more = source.cached.tokens - worker.cached.tokens;
  const double with = worker.prefill.Ms(need.prompt_tokens, source.cached.tokens);
  Fetched fetched{.terms = own,
                  .fetch = {.tokens = more, .computed_ms = std::max(0.0, own.prefill_ms - with)}};
  const double trust = std::clamp(source.cached.trust, 0.0, 1.0);
  fetched.terms.prefill_ms = trust * with + (1 - trust) * own.prefill_ms;
  // What is missing on this worker is the end of what is there, and that is what cools first.
  fetched.terms.fetch_ms = worker.pull->Ms(more) +
                           source.dram.Ms(std::min(source.cached.dram_tokens, more)) +
                           source.nvme.Ms(std::min(source.cached.nvme_tokens, more));
  return fetched;
}

double MeanOf(const PlacementInput& input, const KvFormat& format, double Candidate::*field) {
  double sum = 0;
  double count = 0;
  for (const Candidate& worker : input.prefill) {
    if (worker.format != format) continue;
    sum += worker.*field;
    ++count;
  }
  return count > 0 ? sum / count : 0;
}

// Who has most of the prompt, and of those who have it the fastest; null when nobody has any.
std::optional<size_t> BestSource(const PlacementInput& input, const KvFormat& format) {
  const auto slow = [](const PrefixSource& source) {
    return source.dram.Ms(source.cached.dram_tokens) + source.nvme.Ms(source.cached.nvme_tokens);
  };
  const auto better = [&](const PrefixSource& a, const PrefixSource& b) {
    const double of_a = a.cached.tokens * a.cached.trust;
    const double of_b = b.cached.tokens * b.cached.trust;
    return of_a != of_b ? of_a > of_b : slow(a) < slow(b);
  };
  std::optional<size_t> best;
  for (size_t i = 0; i < input.sources.size(); ++i) {
    const PrefixSource& source = input.sources[i];
    if (source.format != format || source.cached.tokens == 0) continue;
    if (!best || better(source, input.sources[*best])) best = i;
  }
  return best;
}

// How far the workers of a format have the prompt already. What most of them have is wanted by so
// many that one more copy is no waste, though it is work.
class Spread {
 public:
  Spread(const PlacementInput& input, const KvFormat& format) {
    for (const Candidate& worker : input.prefill) {
      if (worker.format == format) cached_.push_back(worker.cached.tokens);
    }
    std::sort(cached_.begin(), cached_.end());
    behind_.resize(cached_.size() + 1, 0);
    for (size_t i = cached_.size(); i-- > 0;) behind_[i] = behind_[i + 1] + cached_[i];
  }

  // Of the prompt's tokens behind the first `from`, averaged: 1 where there is one copy or none, 0
  // where all others have it.
  double Rarity(uint32_t from, uint32_t tokens) const {
    if (from >= tokens || cached_.size() < 2 || from >= cached_.back()) return 1;
    const auto first = std::upper_bound(cached_.begin(), cached_.end(), from);
    const auto number = static_cast<size_t>(first - cached_.begin());
    const auto holders = static_cast<double>(cached_.size() - number);
    const double beyond_first = behind_[number] - cached_.back() - (holders - 1) * from;
    return 1 - beyond_first / (static_cast<double>(cached_.size() - 1) * (tokens - from));
  }

 private:
  std::vector<uint32_t> cached_;  // sorted
  std::vector<double> behind_;    // [i]: the sum of cached_[i] and those after it
};

void AddBehind(const PlacementPolicy& policy, double rarity, PlacementTerms& terms) {
  terms.behind_ms =
      policy.queueing_cost_weight * rarity * (terms.prefill_ms + terms.restore_ms + terms.fetch_ms);
}

// What one more sequence takes from the others until its answer ends.
double HarmMs(const Candidate& worker, const PlacementInput& input) {
  const PlacementNeed& need = input.need;
  const double before = worker.step.Ms(worker.requests, worker.context_tokens);
  const double after =
      worker.step.Ms(worker.requests + need.choices, worker.context_tokens + need.prompt_tokens);
  const double answer = need.answer_tokens;
  return input.policy.decode_interference_weight * (after - before) * worker.requests * answer;
}

}  // namespace

double ExpectedPrefillMs(const Candidate& worker, const PlacementNeed& need, uint32_t cached) {
  const double with = worker.prefill.Ms(need.prompt_tokens, cached);
  if (worker.cached.trust >= 1) return with;
  const double without = worker.prefill.Ms(need.prompt_tokens, 0);
  return worker.cached.trust * with + (1 - worker.cached.trust) * without;
}

bool LongEnough(const Candidate& worker, const PlacementNeed& need) {
  return worker.max_model_len == 0 || need.prompt_tokens < worker.max_model_len;
}

bool BigEnough(const Candidate& worker, const PlacementNeed& need) {
  const PlacementNeed min{.prompt_tokens = need.prompt_tokens,
                          .answer_tokens = std::min(need.answer_tokens, 1u),
                          .choices = need.choices};
  return worker.blocks_total == 0 ||
         BlocksNeeded(min, worker.format.block_tokens) <= worker.blocks_total;
}

std::vector<ScoredWorker> ScorePrefill(const PlacementInput& input, const KvFormat& format) {
  const std::optional<size_t> source = BestSource(input, format);
  const double hot_ms = input.policy.hot_spot_factor * MeanOf(input, format, &Candidate::queue_ms) +
                        input.policy.hot_spot_ms;
  const double mean_recent_ms = MeanOf(input, format, &Candidate::recent_ms);
  const double lasting_most_ms =
      (1 + input.policy.lasting_slack) * MeanOf(input, format, &Candidate::lasting_ms) +
      kLastingFreeMs;
  const Spread spread(input, format);
  std::vector<ScoredWorker> scored;
  for (size_t i = 0; i < input.prefill.size(); ++i) {
    const Candidate& worker = input.prefill[i];
    if (worker.format != format || !LongEnough(worker, input.need) || !HasQueue(worker)) continue;
    ScoredWorker it{.index = i,
                    .terms = PrefillTerms(worker, input),
                    .failures = worker.failures,
                    .hot = worker.queue_ms > hot_ms,
                    .cached_tokens = worker.cached.tokens};
    AddBehind(input.policy, spread.Rarity(worker.cached.tokens, input.need.prompt_tokens),
              it.terms);
    if (source && worker.pull && input.sources[*source].cached.tokens > worker.cached.tokens) {
      Fetched fetched = FetchTerms(worker, it.terms, input.sources[*source], input.need);
      AddBehind(input.policy, 1, fetched.terms);
      if (fetched.terms.cost_ms() < it.terms.cost_ms()) {
        it.terms = fetched.terms;
        it.cached_tokens = input.sources[*source].cached.tokens;
        it.fetch = fetched.fetch;
        it.fetch->source = *source;
      }
    }
    it.terms.balance_ms =
        input.policy.balance_weight * (worker.recent_ms - mean_recent_ms) +
        input.policy.lasting_weight * std::max(0.0, worker.lasting_ms - lasting_most_ms);
    scored.push_back(it);
  }
  return scored;
}

std::vector<ScoredWorker> ScoreDecode(const PlacementInput& input, const KvFormat& format) {
  std::vector<ScoredWorker> scored;
  for (size_t i = 0; i < input.decode.size(); ++i) {
    const Candidate& worker = input.decode[i];
    const PlacementNeed& need = input.need;
    const bool fits = worker.format == format && LongEnough(worker, need) && HasQueue(worker) &&
                      BigEnough(worker, need);
    if (!fits) continue;
    const uint64_t wanted = worker.blocks_taken + BlocksNeeded(need, format.block_tokens);
    const double fullness = worker.blocks_total == 0 ? 0
                                                     : static_cast<double>(wanted) /
                                                           static_cast<double>(worker.blocks_total);
    scored.push_back(
        {.index = i,
         .terms = {.decode_ms = worker.step.Ms(worker.requests + need.choices,
                                               worker.context_tokens + need.prompt_tokens),
                   .held_ms = -worker.link.ms_per_token * worker.cached.trust *
                              std::min(worker.cached.tokens, need.prompt_tokens),
                   .harm_ms =
                       HarmMs(worker, input) + input.policy.fullness_ms * std::min(fullness, 1.0)},
         .failures = worker.failures,
         .no_room = worker.blocks_total > 0 && wanted > worker.blocks_total,
         .cached_tokens = worker.cached.tokens});
  }
  return scored;
}

}  // namespace penstock
