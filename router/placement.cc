#include "router/placement.h"

#include <algorithm>
#include <compare>
#include <functional>

namespace penstock {
namespace {

// Less is better. The order of the fields is their weight.
struct PrefillCost {
  int failures = 0;
  uint64_t tokens_before = 0;
  auto operator<=>(const PrefillCost&) const = default;
};

struct DecodeCost {
  int failures = 0;
  bool waits_for_blocks = false;
  uint32_t requests = 0;
  int64_t blocks_short = 0;  // the negative of what is free after ours
  auto operator<=>(const DecodeCost&) const = default;
};

// The cheapest candidate that `fits`, the random-th of equals.
template <class Cost>
std::optional<size_t> Cheapest(const std::vector<Candidate>& candidates, uint64_t random,
                               const std::function<bool(const Candidate&)>& fits,
                               const std::function<Cost(const Candidate&)>& cost) {
  std::vector<size_t> best;
  std::optional<Cost> least;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (!fits(candidates[i])) continue;
    const Cost its = cost(candidates[i]);
    if (!least || its < *least) {
      least = its;
      best.clear();
    }
    if (its == *least) best.push_back(i);
  }
  if (best.empty()) return std::nullopt;
  return best[random % best.size()];
}

bool LongEnough(const Candidate& worker, const PlacementNeed& need) {
  return worker.max_model_len == 0 || need.prompt_tokens < worker.max_model_len;
}

bool HasQueue(const Candidate& worker) { return worker.waiting < kMaxWaitingPerWorker; }

// Whether it could ever hold the prompt and one more token of each choice.
bool BigEnough(const Candidate& worker, const PlacementNeed& need) {
  const PlacementNeed least{.prompt_tokens = need.prompt_tokens,
                            .answer_tokens = std::min(need.answer_tokens, 1u),
                            .choices = need.choices};
  return worker.blocks_total == 0 ||
         BlocksNeeded(least, worker.format.block_tokens) <= worker.blocks_total;
}

DecodeCost CostOfDecode(const Candidate& worker, const PlacementNeed& need) {
  const auto free = static_cast<int64_t>(worker.blocks_total) -
                    static_cast<int64_t>(worker.blocks_taken) -
                    static_cast<int64_t>(BlocksNeeded(need, worker.format.block_tokens));
  return {worker.failures, free < 0, worker.requests, -free};
}

std::optional<WorkerPair> BestOfFormat(const PlacementInput& input, const KvFormat& format) {
  const PlacementNeed& need = input.need;
  const auto prefill = Cheapest<PrefillCost>(
      input.prefill, input.random,
      [&](const Candidate& worker) {
        return worker.format == format && LongEnough(worker, need) && HasQueue(worker);
      },
      [](const Candidate& worker) {
        return PrefillCost{worker.failures, worker.waiting_tokens};
      });
  const auto decode = Cheapest<DecodeCost>(
      input.decode, input.random >> 32,
      [&](const Candidate& worker) {
        return worker.format == format && LongEnough(worker, need) && HasQueue(worker) &&
               BigEnough(worker, need);
      },
      [&](const Candidate& worker) { return CostOfDecode(worker, need); });
  if (!prefill || !decode) return std::nullopt;
  return WorkerPair{*prefill, *decode};
}

std::vector<KvFormat> FormatsOfPairs(const PlacementInput& input) {
  std::vector<KvFormat> formats;
  for (const Candidate& prefill : input.prefill) {
    const bool has_partner =
        std::any_of(input.decode.begin(), input.decode.end(),
                    [&](const Candidate& decode) { return decode.format == prefill.format; });
    const bool wanted = !input.need.format || *input.need.format == prefill.format;
    const bool known = std::find(formats.begin(), formats.end(), prefill.format) != formats.end();
    if (has_partner && wanted && !known) formats.push_back(prefill.format);
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
      "are): start both with the same checkpoint, block_tokens and kv_format",
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
  return ResourceExhausted(
      "every worker has {} requests waiting, which is the limit; try again in a second",
      kMaxWaitingPerWorker);
}

}  // namespace

uint64_t BlocksNeeded(const PlacementNeed& need, uint32_t block_tokens) {
  if (block_tokens == 0) return 0;
  const auto blocks = [&](uint64_t tokens) { return (tokens + block_tokens - 1) / block_tokens; };
  return blocks(need.prompt_tokens) + need.choices * blocks(need.answer_tokens);
}

absl::StatusOr<WorkerPair> Place(const PlacementInput& input) {
  const std::vector<KvFormat> formats = FormatsOfPairs(input);
  if (formats.empty()) return NoPair(input);
  std::optional<WorkerPair> best;
  const auto before = [&](const WorkerPair& pair) {
    const Candidate& prefill = input.prefill[pair.prefill];
    const int failures = prefill.failures + input.decode[pair.decode].failures;
    return PrefillCost{failures, prefill.waiting_tokens};
  };
  for (const KvFormat& format : formats) {
    const std::optional<WorkerPair> pair = BestOfFormat(input, format);
    if (pair && (!best || before(*pair) < before(*best))) best = pair;
  }
  if (!best) return AllFull(input);
  return *best;
}

}  // namespace penstock
