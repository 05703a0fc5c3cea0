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

bool ByModel(const DraftChoice& choice) { return choice.drafter == Drafter::kModel; }

// The bids of `choices`. The draft model's sequences share the time of its step.
std::vector<Bid> BidsOf(std::span<const DraftOffers> offers, std::span<const DraftChoice> choices,
                        const DraftCosts& costs) {
  const auto sharers = std::ranges::count_if(choices, ByModel);
  const double share =
      sharers == 0 ? 0 : costs.model->Seconds(sharers) / static_cast<double>(sharers);
  std::vector<Bid> bids;
  for (size_t i = 0; i < offers.size(); ++i) {
    const DraftOffer& offer = ByModel(choices[i]) ? offers[i].model : offers[i].ngram;
    bids.push_back({.offer = offer,
                    .seconds = costs.target.SecondsPerRow() + (ByModel(choices[i]) ? share : 0),
                    .gain = offer.tokens > 0 ? offer.acceptance : 0});
  }
  return bids;
}

// Sequences whose guesses by the draft model do not pay give up their share. Returns true if there
// are any.
bool DropUnpaid(std::vector<DraftChoice>& choices) {
  bool any = false;
  for (DraftChoice& choice : choices) {
    if (!ByModel(choice) || choice.tokens > 0) continue;
    choice.drafter = Drafter::kNgram;
    any = true;
  }
  return any;
}

}  // namespace

// The sequences that use the draft model share the time of its step. When one of them gets no guess
// after all, the others' shares grow, so the choice is made again without it.
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

DraftPlan RandomDrafts(std::span<const DraftOffers> offers, int32_t rows_max,
                       std::mt19937& random) {
  DraftPlan plan;
  for (const DraftOffers& offer : offers) {
    const bool model = offer.model.tokens > 0 && (offer.ngram.tokens == 0 || random() % 2 == 0);
    const int32_t most = std::min(model ? offer.model.tokens : offer.ngram.tokens, rows_max);
    const auto tokens = static_cast<int32_t>(random() % (static_cast<uint32_t>(most) + 1));
    plan.choices.push_back(
        {.drafter = model ? Drafter::kModel : Drafter::kNgram, .tokens = tokens});
    rows_max -= tokens;
  }
  return plan;
}

}  // namespace penstock
