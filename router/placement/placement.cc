#include "router/placement/placement.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "router/placement/placement_score.h"
#include "router/request/error_detail.h"

namespace penstock {
namespace {

// The number of workers of each side that are paired, best first.
constexpr size_t kPairedPerSide = 16;

using Verdict = ScoredPair::Verdict;

struct Pair {
  const ScoredWorker* prefill = nullptr;  // nullptr: the decode worker computes the prompt
  const ScoredWorker* decode = nullptr;
  Standing standing;
  PlacementTerms terms;
  double cost_ms = 0;

  bool operator<(const Pair& other) const {
    if (standing != other.standing) return standing < other.standing;
    return cost_ms < other.cost_ms;
  }
};

void KeepBest(std::vector<ScoredWorker>& workers) {
  if (workers.size() <= kPairedPerSide) return;
  const auto before = [](const ScoredWorker& a, const ScoredWorker& b) {
    const Standing of_a{a.failures, a.no_room * 4 + a.hot};
    const Standing of_b{b.failures, b.no_room * 4 + b.hot};
    if (of_a != of_b) return of_a < of_b;
    return a.terms.cost_ms() < b.terms.cost_ms();
  };
  std::nth_element(workers.begin(), workers.begin() + kPairedPerSide, workers.end(), before);
  workers.resize(kPairedPerSide);
}

PlacementTerms Sum(const PlacementTerms& prefill, const PlacementTerms& decode) {
  PlacementTerms sum = prefill;
  sum.decode_ms = decode.decode_ms;
  sum.transfer_discount_ms = decode.transfer_discount_ms;
  sum.decode_interference_ms = decode.decode_interference_ms;
  return sum;
}

Pair PairOf(const ScoredWorker& prefill, const ScoredWorker& decode, const PlacementNeed& need) {
  Pair pair{.prefill = &prefill, .decode = &decode, .terms = Sum(prefill.terms, decode.terms)};
  const bool over = need.ttft_limit_ms > 0 && pair.terms.ttft_ms() > need.ttft_limit_ms;
  pair.standing = {prefill.failures + decode.failures, decode.no_room * 4 + over * 2 + prefill.hot};
  pair.cost_ms = pair.terms.cost_ms();
  return pair;
}

// The last token is always computed: its logits give the first token of the answer.
uint32_t CachedOn(const Candidate& worker, const PlacementNeed& need) {
  return std::min(worker.cached.tokens, need.prompt_tokens - 1);
}

bool MayPrefillLocally(const Candidate& worker, const PlacementNeed& need) {
  const uint32_t cached = CachedOn(worker, need);
  const uint32_t rest = need.prompt_tokens - cached;
  return need.may_prefill_locally && cached > 0 && rest <= worker.local_prefill_max_tokens;
}

// The cost of a local prefill: a decode worker that has the prompt cached except for a short end
// computes that end itself. Nothing is transferred, but its running sequences wait for the compute,
// one chunk in each step (chunked prefill, as in Sarathi-Serve, OSDI 2024). See docs/adr/0021.
Pair LocalPrefillOn(const PlacementInput& input, const ScoredWorker& decode) {
  const Candidate& worker = input.decode[decode.index];
  const PlacementNeed& need = input.need;
  const uint32_t cached = CachedOn(worker, need);
  const uint32_t rest = need.prompt_tokens - cached;
  const double chunks = std::ceil(static_cast<double>(rest) / std::max(1u, worker.prefill_chunk));
  const double compute_ms = ExpectedPrefillMs(worker, need, cached);
  Pair pair{.decode = &decode, .terms = decode.terms};
  pair.terms.transfer_discount_ms = 0;
  // A chunk shares its step with the running sequences; without any, it is a step of its own.
  const double shared_ms = worker.requests > 0 ? chunks * decode.terms.decode_ms : 0;
  pair.terms.prefill_ms = compute_ms + shared_ms;
  pair.terms.queueing_cost_ms = input.policy.queueing_cost_weight * compute_ms;
  pair.terms.decode_interference_ms +=
      input.policy.decode_interference_weight * compute_ms * worker.requests;
  const bool over = need.ttft_limit_ms > 0 && pair.terms.ttft_ms() > need.ttft_limit_ms;
  pair.standing = {decode.failures, decode.no_room * 4 + over * 2};
  pair.cost_ms = pair.terms.cost_ms();
  return pair;
}

// Compares each side on its own: the cost of a long prefill would hide every difference between
// decode workers.
bool IsTied(const Pair& pair, const Pair& best, double tie_fraction) {
  const auto near = [tie_fraction](double ms, double best_ms) {
    return ms <= best_ms + std::abs(best_ms) * tie_fraction;
  };
  return pair.standing == best.standing && (pair.prefill == nullptr) == (best.prefill == nullptr) &&
         near(pair.terms.prefill_cost_ms(), best.terms.prefill_cost_ms()) &&
         near(pair.terms.decode_cost_ms(), best.terms.decode_cost_ms());
}

Verdict VerdictOf(const Pair& pair, const Pair& best, double tie_fraction) {
  if (pair.standing.failures > best.standing.failures) return Verdict::kFailedBefore;
  if ((pair.standing.faults & 4) != 0) return Verdict::kNoRoom;
  if ((pair.standing.faults & 2) != 0) return Verdict::kOverLimit;
  if (pair.standing.faults > best.standing.faults) return Verdict::kHotSpot;
  return IsTied(pair, best, tie_fraction) ? Verdict::kTied : Verdict::kHigherCost;
}

std::vector<Pair> PairsOfFormat(const PlacementInput& input,
                                const std::vector<ScoredWorker>& prefill,
                                const std::vector<ScoredWorker>& decode) {
  std::vector<Pair> pairs;
  pairs.reserve(prefill.size() * decode.size());
  for (const ScoredWorker& one : prefill) {
    for (const ScoredWorker& other : decode) pairs.push_back(PairOf(one, other, input.need));
  }
  for (const ScoredWorker& one : decode) {
    const bool may = MayPrefillLocally(input.decode[one.index], input.need);
    if (may) pairs.push_back(LocalPrefillOn(input, one));
  }
  return pairs;
}

std::vector<Pair> AloneOfFormat(const PlacementInput& input,
                                const std::vector<ScoredWorker>& decode) {
  std::vector<Pair> pairs;
  for (const ScoredWorker& one : decode) {
    if (input.decode[one.index].serves_alone) pairs.push_back(LocalPrefillOn(input, one));
  }
  return pairs;
}

std::vector<KvFormat> FormatsOfPairs(const PlacementInput& input) {
  std::vector<KvFormat> formats;
  for (const Candidate& prefill : input.prefill) {
    const bool known = std::find(formats.begin(), formats.end(), prefill.format) != formats.end();
    const bool wanted = !input.need.format || *input.need.format == prefill.format;
    if (known || !wanted) continue;
    const bool has_partner =
        std::any_of(input.decode.begin(), input.decode.end(),
                    [&](const Candidate& decode) { return decode.format == prefill.format; });
    if (has_partner) formats.push_back(prefill.format);
  }
  return formats;
}

// The formats of decode workers that may serve alone: none while a prefill worker is ready that
// could serve with one of them.
std::vector<KvFormat> FormatsAlone(const PlacementInput& input) {
  std::vector<KvFormat> formats;
  if (!input.need.may_skip_prefill) return formats;
  for (const Candidate& decode : input.decode) {
    const bool known = std::find(formats.begin(), formats.end(), decode.format) != formats.end();
    const bool wanted = !input.need.format || *input.need.format == decode.format;
    if (decode.serves_alone && wanted && !known) formats.push_back(decode.format);
  }
  return formats;
}

absl::Status NoPair(const PlacementInput& input) {
  if (input.prefill.empty()) {
    return Unavailable("no prefill worker is ready ({} known); try again in a second",
                       input.prefill_known);
  }
  if (input.decode.empty()) {
    return Unavailable("no decode worker is ready ({} known); try again in a second",
                       input.decode_known);
  }
  return Unavailable(
      "no prefill worker and decode worker of the same model and KV format are ready ({} and {} "
      "are): start both with the same checkpoint, block_tokens, kv_format and numerics",
      input.prefill.size(), input.decode.size());
}

absl::Status AllFull(const PlacementInput& input) {
  const auto can_hold = [&](const Candidate& worker) {
    return LongEnough(worker, input.need) && BigEnough(worker, input.need);
  };
  if (std::none_of(input.decode.begin(), input.decode.end(), can_hold)) {
    return ResourceExhausted(
        "a prompt of {} tokens with {} choices is more than the pool of any decode worker holds: "
        "shorten it, or give the workers more kv_memory",
        input.need.prompt_tokens, input.need.choices);
  }
  return WithDetail(
      ResourceExhausted("the queue of every worker is full (max_waiting); try again in a second"),
      {.reason = kReasonOverloaded, .retry_after = std::chrono::seconds(1)});
}

// The best pair misses the TTFT limit. The client may retry after the excess, the time in which the
// queue becomes short enough.
absl::Status TooSlow(const PlacementInput& input, const Pair& best) {
  const double late_ms = best.terms.ttft_ms() - input.need.ttft_limit_ms;
  // A prompt that takes too long on an idle worker takes too long later as well: no retry.
  if (best.terms.ttft_ms() - best.terms.queue_ms > input.need.ttft_limit_ms) {
    return WithDetail(
        ResourceExhausted(
            "the first token would take {:.0f} ms on an idle worker, and the limit is {:.0f} ms: "
            "shorten the prompt or raise the limit",
            best.terms.ttft_ms() - best.terms.queue_ms, input.need.ttft_limit_ms),
        {.reason = kReasonTooSlow});
  }
  return WithDetail(
      ResourceExhausted("the first token would take {:.0f} ms ({:.0f} ms of them waiting), and the "
                        "limit is {:.0f} ms; try again in {:.0f} ms",
                        best.terms.ttft_ms(), best.terms.queue_ms, input.need.ttft_limit_ms,
                        late_ms),
      {.reason = kReasonTooSlow,
       .retry_after = std::chrono::microseconds(static_cast<int64_t>(late_ms * 1000))});
}

WorkerPair WorkersOf(const Pair& pair) {
  return {pair.prefill == nullptr ? WorkerPair::kNone : pair.prefill->index, pair.decode->index};
}

ScoredPair ScoredOf(const Pair& pair, Verdict verdict) {
  return {.workers = WorkersOf(pair),
          .terms = pair.terms,
          .fetch = pair.prefill == nullptr ? std::nullopt : pair.prefill->fetch,
          .verdict = verdict};
}

// Picks one of the tied best pairs by `input.random`.
Placement Choose(const PlacementInput& input, std::vector<Pair> pairs) {
  const Pair best = *std::min_element(pairs.begin(), pairs.end());
  const auto others = std::partition(pairs.begin(), pairs.end(), [&](const Pair& pair) {
    return IsTied(pair, best, input.policy.tie_fraction);
  });
  const size_t equals = static_cast<size_t>(others - pairs.begin());
  std::swap(pairs[0], pairs[input.random % equals]);
  const Pair& chosen = pairs[0];
  const ScoredWorker& computes = chosen.prefill == nullptr ? *chosen.decode : *chosen.prefill;
  Placement placement{.workers = WorkersOf(chosen),
                      .terms = chosen.terms,
                      .cached_tokens = computes.cached_tokens,
                      .held_tokens = chosen.decode->cached_tokens,
                      .fetch = computes.fetch};
  const size_t told = std::min(input.explain, pairs.size());
  if (told == 0) return placement;
  placement.scored.push_back(ScoredOf(chosen, Verdict::kChosen));
  std::partial_sort(pairs.begin() + 1, pairs.begin() + static_cast<ptrdiff_t>(told), pairs.end());
  for (size_t i = 1; i < told; ++i) {
    placement.scored.push_back(
        ScoredOf(pairs[i], VerdictOf(pairs[i], best, input.policy.tie_fraction)));
  }
  return placement;
}

}  // namespace

uint64_t BlocksNeeded(const PlacementNeed& need, const KvFormat& format) {
  const uint64_t block_tokens = format.block_tokens;
  if (block_tokens == 0) return 0;
  // A window begins and ends within a block.
  const uint64_t seen =
      format.window == 0 ? std::numeric_limits<uint32_t>::max() : format.window + 2 * block_tokens;
  const auto blocks = [&](uint64_t tokens) {
    return (std::min(tokens, seen) + block_tokens - 1) / block_tokens;
  };
  const uint64_t all = blocks(need.kv_tokens()) + need.choices * blocks(need.answer_tokens);
  const uint64_t held = need.held_max == 0 ? seen : need.held_max;
  return std::min(all, std::max(1u, need.choices) * blocks(held));
}

absl::StatusOr<size_t> PlaceTarget(const PlacementInput& input) {
  std::vector<ScoredWorker> decode = ScoreDecode(input, input.need.format.value_or(KvFormat()));
  if (decode.empty()) {
    return Unavailable("no decode worker can take over ({} are ready)", input.decode.size());
  }
  const auto before = [](const ScoredWorker& a, const ScoredWorker& b) {
    const Standing of_a{a.failures, a.no_room};
    const Standing of_b{b.failures, b.no_room};
    if (of_a != of_b) return of_a < of_b;
    return a.terms.cost_ms() < b.terms.cost_ms();
  };
  return std::min_element(decode.begin(), decode.end(), before)->index;
}

// Minimum-cost pairing. The cost of a pair is a sum of terms that each depend on one side, so each
// side is scored on its own (placement_score.h), and only the 16 best of each side are paired: work
// is linear in the workers. Cache-aware load balancing in the manner of Preble (arXiv 2407.00023),
// SGLang's router and Mooncake's Conductor (FAST 2025); docs/adr/0006 has the weights' reasons.
absl::StatusOr<Placement> Place(const PlacementInput& input) {
  std::vector<KvFormat> formats = FormatsOfPairs(input);
  const bool alone = formats.empty();
  if (alone) formats = FormatsAlone(input);
  if (formats.empty()) return NoPair(input);
  // Pairs hold pointers into these vectors.
  std::vector<std::vector<ScoredWorker>> sides;
  sides.reserve(2 * formats.size());
  std::vector<Pair> pairs;
  for (const KvFormat& format : formats) {
    std::vector<ScoredWorker>& prefill = sides.emplace_back(ScorePrefill(input, format));
    std::vector<ScoredWorker>& decode = sides.emplace_back(ScoreDecode(input, format));
    KeepBest(prefill);
    KeepBest(decode);
    const std::vector<Pair> more =
        alone ? AloneOfFormat(input, decode) : PairsOfFormat(input, prefill, decode);
    pairs.insert(pairs.end(), more.begin(), more.end());
  }
  if (pairs.empty()) return AllFull(input);
  const Pair& best = *std::min_element(pairs.begin(), pairs.end());
  if ((best.standing.faults & 2) != 0) return TooSlow(input, best);
  Placement placement = Choose(input, std::move(pairs));
  placement.alone = alone;
  return placement;
}

}  // namespace penstock
