#include "router/placement/placement_score.h"

#include <algorithm>

namespace penstock {
namespace {

// Long-term work above the mean that is not penalized: the random variation of a few prompts.
constexpr double kLongTermFreeMs = 500;

bool HasQueue(const Candidate& worker) {
  return worker.waiting < (worker.waiting_max > 0 ? worker.waiting_max : kMaxWaitingPerWorker);
}

PlacementTerms PrefillTerms(const Candidate& worker, const PlacementInput& input) {
  const CachedPrefix& cached = worker.cached;
  PlacementTerms terms{
      .queue_ms = worker.queue_ms,
      .prefill_ms = ExpectedPrefillMs(worker, input.need, cached.tokens),
      .restore_ms = worker.dram.Ms(cached.dram_tokens) + worker.nvme.Ms(cached.nvme_tokens),
      .transfer_ms = worker.link.Ms(input.need.kv_tokens())};
  return terms;
}

struct Fetched {
  PlacementTerms terms;
  PrefixFetch fetch;
};

// The terms `own` of a worker, changed for reading the rest of the prefix from `source` first. When
// the prefix proves not to be there, it is computed.
Fetched FetchTerms(const Candidate& worker, const PlacementTerms& own, const PrefixSource& source,
                   const PlacementNeed& need) {
  const uint32_t more = source.cached.tokens - worker.cached.tokens;
  const double with = worker.prefill.Ms(need.prompt_tokens, source.cached.tokens);
  Fetched fetched{.terms = own,
                  .fetch = {.tokens = more, .computed_ms = std::max(0.0, own.prefill_ms - with)}};
  const double hit_probability = std::clamp(source.cached.hit_probability, 0.0, 1.0);
  fetched.terms.prefill_ms = hit_probability * with + (1 - hit_probability) * own.prefill_ms;
  // The worker lacks the end of the source's prefix, and eviction moves the end of a prefix to slow
  // tiers first, so the fetched tokens are assumed to be in the slow tiers.
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

// The source with the most cached tokens (expected value), and of equal ones the one that restores
// them fastest; nullopt when no source has any.
std::optional<size_t> BestSource(const PlacementInput& input, const KvFormat& format) {
  const auto slow = [](const PrefixSource& source) {
    return source.dram.Ms(source.cached.dram_tokens) + source.nvme.Ms(source.cached.nvme_tokens);
  };
  const auto better = [&](const PrefixSource& a, const PrefixSource& b) {
    const double of_a = a.cached.tokens * a.cached.hit_probability;
    const double of_b = b.cached.tokens * b.cached.hit_probability;
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

// The distribution of the prompt's prefix over the prefill workers of a format. Computing a prefix
// that most workers have costs less (Rarity): its popularity makes one more replica useful.
class Spread {
 public:
  Spread(const PlacementInput& input, const KvFormat& format) {
    for (const Candidate& worker : input.prefill) {
      if (worker.format == format) cached_.push_back(worker.cached.tokens);
    }
    std::sort(cached_.begin(), cached_.end());
    suffix_sums_.resize(cached_.size() + 1, 0);
    for (size_t i = cached_.size(); i-- > 0;) suffix_sums_[i] = suffix_sums_[i + 1] + cached_[i];
  }

  // The mean over the tokens in [from, tokens) of the share of other workers that lack the token:
  // 1 when there is one copy or none, 0 when all other workers have them.
  double Rarity(uint32_t from, uint32_t tokens) const {
    if (from >= tokens || cached_.size() < 2 || from >= cached_.back()) return 1;
    const auto first = std::upper_bound(cached_.begin(), cached_.end(), from);
    const auto number = static_cast<size_t>(first - cached_.begin());
    const auto holders = static_cast<double>(cached_.size() - number);
    const double beyond_first = suffix_sums_[number] - cached_.back() - (holders - 1) * from;
    return 1 - beyond_first / (static_cast<double>(cached_.size() - 1) * (tokens - from));
  }

 private:
  std::vector<uint32_t> cached_;     // sorted
  std::vector<double> suffix_sums_;  // [i]: the sum of cached_[i] and those after it
};

void AddQueueingCost(const PlacementPolicy& policy, double rarity, PlacementTerms& terms) {
  terms.queueing_cost_ms =
      policy.queueing_cost_weight * rarity * (terms.prefill_ms + terms.restore_ms + terms.fetch_ms);
}

// The time that one more sequence costs the running ones until its answer ends, weighted: the
// increase of a decode step (StepModel) times the number of sequences times its tokens.
double DecodeInterferenceMs(const Candidate& worker, const PlacementInput& input) {
  const PlacementNeed& need = input.need;
  const double before = worker.step.Ms(worker.requests, worker.context_tokens);
  const double after =
      worker.step.Ms(worker.requests + need.choices, worker.context_tokens + need.kv_tokens());
  const double answer = need.answer_tokens;
  return input.policy.decode_interference_weight * (after - before) * worker.requests * answer;
}

}  // namespace

double ExpectedPrefillMs(const Candidate& worker, const PlacementNeed& need, uint32_t cached) {
  const double with = worker.prefill.Ms(need.prompt_tokens, cached);
  if (worker.cached.hit_probability >= 1) return with;
  const double without = worker.prefill.Ms(need.prompt_tokens, 0);
  return worker.cached.hit_probability * with + (1 - worker.cached.hit_probability) * without;
}

bool LongEnough(const Candidate& worker, const PlacementNeed& need) {
  return worker.max_model_len == 0 || need.prompt_tokens < worker.max_model_len;
}

bool BigEnough(const Candidate& worker, const PlacementNeed& need) {
  const PlacementNeed min{.prompt_tokens = need.prompt_tokens,
                          .evicted_tokens = need.evicted_tokens,
                          .held_max = need.held_max,
                          .answer_tokens = std::min(need.answer_tokens, 1u),
                          .choices = need.choices};
  return worker.blocks_total == 0 || BlocksNeeded(min, worker.format) <= worker.blocks_total;
}

// Cost of a prefill worker: time to first token (queue, compute, restore, or fetch from a peer when
// that is cheaper), plus the transfer, plus the weighted queueing cost and load balancing.
std::vector<ScoredWorker> ScorePrefill(const PlacementInput& input, const KvFormat& format) {
  const std::optional<size_t> source = BestSource(input, format);
  const double hot_ms = input.policy.hot_spot_factor * MeanOf(input, format, &Candidate::queue_ms) +
                        input.policy.hot_spot_ms;
  const double mean_recent_ms = MeanOf(input, format, &Candidate::recent_work_ms);
  const double long_term_limit_ms =
      (1 + input.policy.long_term_slack) * MeanOf(input, format, &Candidate::long_term_work_ms) +
      kLongTermFreeMs;
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
    AddQueueingCost(input.policy, spread.Rarity(worker.cached.tokens, input.need.prompt_tokens),
                    it.terms);
    if (source && worker.pull && input.sources[*source].cached.tokens > worker.cached.tokens) {
      Fetched fetched = FetchTerms(worker, it.terms, input.sources[*source], input.need);
      AddQueueingCost(input.policy, 1, fetched.terms);
      if (fetched.terms.cost_ms() < it.terms.cost_ms()) {
        it.terms = fetched.terms;
        it.cached_tokens = input.sources[*source].cached.tokens;
        it.fetch = fetched.fetch;
        it.fetch->source = *source;
      }
    }
    it.terms.balance_ms = input.policy.balance_weight * (worker.recent_work_ms - mean_recent_ms) +
                          input.policy.long_term_weight *
                              std::max(0.0, worker.long_term_work_ms - long_term_limit_ms);
    scored.push_back(it);
  }
  return scored;
}

// Cost of a decode worker: its next step, plus the weighted interference with its running
// sequences, plus its fullness, less the transfer that its cache saves.
std::vector<ScoredWorker> ScoreDecode(const PlacementInput& input, const KvFormat& format) {
  std::vector<ScoredWorker> scored;
  for (size_t i = 0; i < input.decode.size(); ++i) {
    const Candidate& worker = input.decode[i];
    const PlacementNeed& need = input.need;
    const bool fits = worker.format == format && LongEnough(worker, need) && HasQueue(worker) &&
                      BigEnough(worker, need);
    if (!fits) continue;
    const uint64_t wanted = worker.blocks_taken + BlocksNeeded(need, format);
    const double fullness = worker.blocks_total == 0 ? 0
                                                     : static_cast<double>(wanted) /
                                                           static_cast<double>(worker.blocks_total);
    scored.push_back(
        {.index = i,
         .terms = {.decode_ms = worker.step.Ms(worker.requests + need.choices,
                                               worker.context_tokens + need.kv_tokens()),
                   .transfer_discount_ms = -worker.link.ms_per_token *
                                           worker.cached.hit_probability *
                                           std::min(worker.cached.tokens, need.prompt_tokens),
                   .decode_interference_ms = DecodeInterferenceMs(worker, input) +
                                             input.policy.fullness_ms * std::min(fullness, 1.0)},
         .failures = worker.failures,
         .no_room = worker.blocks_total > 0 && wanted > worker.blocks_total,
         .cached_tokens = worker.cached.tokens});
  }
  return scored;
}

}  // namespace penstock
