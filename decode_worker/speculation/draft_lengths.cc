#include "decode_worker/speculation/draft_lengths.h"

#include <algorithm>
#include <array>

namespace penstock {
namespace {

// A row must gain this many times its cost: rates and times are estimates.
constexpr double kMargin = 1.2;

// The offer of one sequence that takes part in the choice.
struct Bid {
  DraftOffer offer;
  double seconds = 0;  // for each of its tokens: a row, and a part of its drafter's step
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

const DraftOffer& OfferOf(const DraftOffers& offers, Drafter drafter) {
  if (drafter == Drafter::kModel) return offers.model;
  return drafter == Drafter::kMtp ? offers.mtp : offers.ngram;
}

// The time of the steps in which the drafter computes its guesses; null: they cost nothing.
const StepCost* CostOf(const DraftCosts& costs, Drafter drafter) {
  if (drafter == Drafter::kModel) return costs.model;
  return drafter == Drafter::kMtp ? costs.mtp : nullptr;
}

// The drafter of each sequence where guesses cost nothing: that with the better ones.
DraftChoice FirstChoice(const DraftOffers& offers, const DraftCosts& costs) {
  DraftChoice choice;
  for (const Drafter other : {Drafter::kModel, Drafter::kMtp}) {
    const DraftOffer& best = OfferOf(offers, choice.drafter);
    const DraftOffer& offer = OfferOf(offers, other);
    if (CostOf(costs, other) == nullptr || offer.tokens == 0) continue;
    if (best.tokens == 0 || best.acceptance < offer.acceptance) choice.drafter = other;
  }
  return choice;
}

// The part of a drafter's step that each of its sequences pays.
double ShareOf(Drafter drafter, std::span<const DraftChoice> choices, const DraftCosts& costs) {
  const StepCost* const cost = CostOf(costs, drafter);
  if (cost == nullptr) return 0;
  const auto sharers = std::ranges::count(choices, drafter, &DraftChoice::drafter);
  return sharers == 0 ? 0 : cost->Seconds(sharers) / static_cast<double>(sharers);
}

// The bids of `choices`. The sequences of a drafter share the time of its step.
std::vector<Bid> BidsOf(std::span<const DraftOffers> offers, std::span<const DraftChoice> choices,
                        const DraftCosts& costs) {
  std::array<double, kDrafters> shares;
  for (size_t i = 0; i < kDrafters; ++i) {
    shares[i] = ShareOf(static_cast<Drafter>(i), choices, costs);
  }
  std::vector<Bid> bids;
  for (size_t i = 0; i < offers.size(); ++i) {
    const Drafter drafter = choices[i].drafter;
    const DraftOffer& offer = OfferOf(offers[i], drafter);
    bids.push_back({.offer = offer,
                    .seconds = costs.target.SecondsPerRow() + shares[static_cast<size_t>(drafter)],
                    .gain = offer.tokens > 0 ? offer.acceptance : 0});
  }
  return bids;
}

// Sequences whose guesses do not pay for their computation give up their share. Returns true if
// there are any.
bool DropUnpaid(std::vector<DraftChoice>& choices) {
  bool any = false;
  for (DraftChoice& choice : choices) {
    if (choice.drafter == Drafter::kNgram || choice.tokens > 0) continue;
    choice.drafter = Drafter::kNgram;
    any = true;
  }
  return any;
}

}  // namespace

// The sequences of a drafter that computes its guesses share the time of its step. When one of them
// gets no guess after all, the others' shares grow, so the choice is made again without it.
DraftPlan ChooseDrafts(std::span<const DraftOffers> offers, const DraftCosts& costs,
                       int32_t rows_max) {
  DraftPlan plan;
  if (offers.empty()) return plan;
  for (const DraftOffers& offer : offers) plan.choices.push_back(FirstChoice(offer, costs));
  const double seconds = costs.target.Seconds(static_cast<int64_t>(offers.size()));
  do {
    std::vector<Bid> bids = BidsOf(offers, plan.choices, costs);
    for (DraftChoice& choice : plan.choices) choice.tokens = 0;
    plan.saved = AddRows(bids, seconds, rows_max, plan.choices);
  } while (DropUnpaid(plan.choices));
  return plan;
}

}  // namespace penstock
