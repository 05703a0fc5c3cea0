#include "decode_worker/speculation/draft_lengths.h"

#include <algorithm>

namespace penstock {
namespace {

// A row must gain this many times its cost: rates and times are estimates.
constexpr double kMargin = 1.2;

// The offer of one sequence that takes part in the choice.
struct Bid {
  DraftOffer offer;
  double seconds = 0;  // for each of its tokens: a row, and a part of the draft model's step
  double gain = 0;     // expected tokens of its next row
};

double GainPerSecond(const Bid& bid) { return bid.gain / bid.seconds; }

// Adds rows to `choices` while they pay. Returns the saved share of the time.
double AddRows(std::vector<Bid>& bids, double seconds, int32_t rows_max,
               std::vector<DraftChoice>& choices) {
  auto expected = static_cast<double>(bids.size());
  const double plain = seconds / expected;
  for (int32_t rows = 0; rows < rows_max; ++rows) {
    const auto best = std::ranges::max_element(bids, {}, GainPerSecond);
    if (best->gain * seconds <= kMargin * best->seconds * expected) break;
    expected += best->gain;
    seconds += best->seconds;
    int32_t& tokens = choices[static_cast<size_t>(best - bids.begin())].tokens;
    const bool more = ++tokens < best->offer.tokens;
    best->gain = more ? best->gain * best->offer.acceptance : 0;
  }
  return 1 - seconds / expected / plain;
}

// The drafter of each sequence where the draft model costs nothing: that with the better guesses.
DraftChoice FirstChoice(const DraftOffers& offers, const DraftCosts& costs) {
  const bool model =
      costs.model != nullptr && offers.model.tokens > 0 &&
      (offers.ngram.tokens == 0 || offers.ngram.acceptance < offers.model.acceptance);
  return {.drafter = model ? Drafter::kModel : Drafter::kNgram, .tokens = 0};
}

}  // namespace

// The sequences of one step of the draft model share its cost. So those for which it does not pay
// drop out, and the choice is made again among fewer, until the rest is worth it.
DraftPlan ChooseDrafts(std::span<const DraftOffers> offers, const DraftCosts& costs,
                       int32_t rows_max) {
  DraftPlan plan;
  if (offers.empty()) return plan;
  for (const DraftOffers& offer : offers) plan.choices.push_back(FirstChoice(offer, costs));
  const double seconds = costs.target.Seconds(static_cast<int64_t>(offers.size()));
  const auto by_model = [](const DraftChoice& choice) { return choice.drafter == Drafter::kModel; };
  for (bool again = true; again;) {
    const auto sharers = std::ranges::count_if(plan.choices, by_model);
    const double share =
        sharers == 0 ? 0 : costs.model->Seconds(sharers) / static_cast<double>(sharers);
    std::vector<Bid> bids;
    for (size_t i = 0; i < offers.size(); ++i) {
      const bool model = by_model(plan.choices[i]);
      const DraftOffer& offer = model ? offers[i].model : offers[i].ngram;
      bids.push_back({.offer = offer,
                      .seconds = costs.target.SecondsPerRow() + (model ? share : 0),
                      .gain = offer.tokens > 0 ? offer.acceptance : 0});
      plan.choices[i].tokens = 0;
    }
    plan.saved = AddRows(bids, seconds, rows_max, plan.choices);
    again = false;
    for (DraftChoice& choice : plan.choices) {
      if (!by_model(choice) || choice.tokens > 0) continue;
      choice.drafter = Drafter::kNgram;
      again = true;
    }
  }
  return plan;
}

}  // namespace penstock
