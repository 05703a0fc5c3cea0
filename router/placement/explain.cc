#include "router/placement/explain.h"

#include <chrono>

namespace penstock {

std::string_view NameOf(ScoredPair::Verdict verdict) {
  using Verdict = ScoredPair::Verdict;
  switch (verdict) {
    case Verdict::kChosen:
      return "chosen";
    case Verdict::kTied:
      return "tied";
    case Verdict::kHigherCost:
      return "higher cost";
    case Verdict::kHotSpot:
      return "hot spot";
    case Verdict::kOverLimit:
      return "over the limit";
    case Verdict::kFailedBefore:
      return "failed before";
    case Verdict::kNoRoom:
      return "no room";
  }
  return "?";
}

v1::Explanation Explain(const PlacementInput& input, const Placement& placement) {
  v1::Explanation explanation;
  explanation.set_prompt_tokens(input.need.prompt_tokens);
  explanation.set_prefill_ready(static_cast<uint32_t>(input.prefill.size()));
  explanation.set_decode_ready(static_cast<uint32_t>(input.decode.size()));
  const auto predicted =
      std::chrono::nanoseconds(static_cast<int64_t>(placement.terms.ttft_ms() * 1e6));
  explanation.mutable_predicted_first_token()->set_seconds(predicted.count() / 1'000'000'000);
  explanation.mutable_predicted_first_token()->set_nanos(
      static_cast<int32_t>(predicted.count() % 1'000'000'000));
  for (const ScoredPair& scored : placement.scored) {
    v1::ScoredPair& out = *explanation.add_candidates();
    const PlacementTerms& terms = scored.terms;
    out.set_verdict(std::string(NameOf(scored.verdict)));
    out.set_queue_ms(terms.queue_ms);
    out.set_prefill_ms(terms.prefill_ms);
    out.set_restore_ms(terms.restore_ms);
    out.set_fetch_ms(terms.fetch_ms);
    if (scored.fetch) out.set_fetched_tokens(scored.fetch->tokens);
    out.set_transfer_ms(terms.transfer_ms + terms.transfer_discount_ms);
    out.set_decode_ms(terms.decode_ms);
    out.set_behind_ms(terms.queueing_cost_ms);
    out.set_balance_ms(terms.balance_ms);
    out.set_harm_ms(terms.decode_interference_ms);
    out.set_cost_ms(terms.cost_ms());
    const Candidate& computes = scored.workers.prefill == WorkerPair::kNone
                                    ? input.decode[scored.workers.decode]
                                    : input.prefill[scored.workers.prefill];
    out.set_cached_tokens(computes.cached.tokens);
    out.set_trust(computes.cached.hit_probability);
  }
  return explanation;
}

}  // namespace penstock
