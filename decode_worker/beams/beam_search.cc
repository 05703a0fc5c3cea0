#include "decode_worker/beams/beam_search.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace penstock {

int32_t BeamRules::candidates() const {
  return width * std::max(2, 1 + static_cast<int32_t>(stop_token_ids.size()));
}

BeamSearch::BeamSearch(BeamRules rules) : rules_(std::move(rules)), beams_(1) {}

void BeamSearch::Offer(int32_t beam, RankedTokens ranked) {
  beams_[static_cast<size_t>(beam)].offer = std::move(ranked);
}

void BeamSearch::DropOffers() {
  for (Beam& beam : beams_) beam.offer.reset();
}

bool BeamSearch::complete() const {
  return std::ranges::all_of(beams_, [](const Beam& beam) { return beam.offer.has_value(); });
}

const RankedToken& BeamSearch::TokenOf(const Candidate& candidate) const {
  return beams_[static_cast<size_t>(candidate.beam)].offer->best[candidate.rank];
}

bool BeamSearch::Stops(const Candidate& candidate) const {
  const std::vector<uint32_t>& stops = rules_.stop_token_ids;
  return std::ranges::find(stops, TokenOf(candidate).id) != stops.end();
}

// The best candidates of all beams. Equal ones: the lower beam first, then the lower token.
std::vector<BeamSearch::Candidate> BeamSearch::BestCandidates() const {
  std::vector<Candidate> all;
  for (size_t i = 0; i < beams_.size(); ++i) {
    const std::vector<RankedToken>& best = beams_[i].offer->best;
    for (size_t rank = 0; rank < best.size(); ++rank) {
      all.push_back({.beam = static_cast<int32_t>(i),
                     .rank = rank,
                     .score = beams_[i].score + double{best[rank].score}});
    }
  }
  std::ranges::stable_sort(
      all, [](const Candidate& a, const Candidate& b) { return a.score > b.score; });
  all.resize(std::min(all.size(), static_cast<size_t>(rules_.candidates())));
  return all;
}

double BeamSearch::Normalize(double score, int32_t length) const {
  return score / std::pow(static_cast<double>(length), rules_.length_penalty);
}

std::vector<BeamToken> BeamSearch::TokensWith(const Candidate& candidate) const {
  const Beam& beam = beams_[static_cast<size_t>(candidate.beam)];
  const RankedToken& token = TokenOf(candidate);
  std::vector<BeamToken> tokens = beam.tokens;
  tokens.push_back({.id = token.id, .logprob = token.logprob, .top = beam.offer->top});
  return tokens;
}

void BeamSearch::AddAnswer(const Candidate& candidate) {
  AddAnswer(TokensWith(candidate), candidate.score, /*stopped=*/true);
}

void BeamSearch::AddAnswer(std::vector<BeamToken> tokens, double score, bool stopped) {
  const double normalized = Normalize(score, length_);
  const auto worse = std::ranges::find_if(
      done_, [normalized](const BeamAnswer& other) { return other.score < normalized; });
  done_.insert(worse, {.tokens = std::move(tokens), .score = normalized, .stopped = stopped});
  if (done_.size() > static_cast<size_t>(rules_.width)) done_.pop_back();
}

absl::StatusOr<std::vector<BeamChild>> BeamSearch::Advance() {
  PENSTOCK_CHECK(!ended_ && complete());
  ++length_;
  const std::vector<Candidate> best = BestCandidates();
  const auto width = static_cast<size_t>(rules_.width);
  std::vector<Beam> next;
  std::vector<BeamChild> children;
  for (size_t i = 0; i < best.size() && next.size() < width; ++i) {
    if (Stops(best[i])) {
      if (i < width) AddAnswer(best[i]);
      continue;
    }
    next.push_back({.tokens = TokensWith(best[i]), .score = best[i].score});
    children.push_back({.parent = best[i].beam, .token = TokenOf(best[i]).id});
  }
  if (next.size() < width) {
    return Internal("{} tokens have a finite score, and {} beams need one each", next.size(),
                    rules_.width);
  }
  beams_ = std::move(next);
  ended_ = length_ >= rules_.tokens_max || IsDone();
  if (!ended_) return children;
  if (length_ >= rules_.tokens_max) {
    for (Beam& beam : beams_) AddAnswer(std::move(beam.tokens), beam.score, /*stopped=*/false);
  }
  return std::vector<BeamChild>();
}

// True when no running beam may enter the answers any more, by the rule of early_stopping.
bool BeamSearch::IsDone() const {
  if (done_.size() < static_cast<size_t>(rules_.width)) return false;
  if (rules_.early_stopping == EarlyStopping::kAtOnce) return true;
  const bool to_the_end =
      rules_.early_stopping == EarlyStopping::kImpossible && rules_.length_penalty > 0;
  return done_.back().score >=
         Normalize(beams_.front().score, to_the_end ? rules_.tokens_max : length_);
}

std::vector<BeamAnswer> BeamSearch::TakeAnswers() {
  PENSTOCK_CHECK(ended_);
  done_.resize(std::min(done_.size(), static_cast<size_t>(rules_.answers)));
  return std::move(done_);
}

}  // namespace penstock
