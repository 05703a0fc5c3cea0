#include "decode_worker/engine/speculator.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace penstock {
namespace {

std::span<const uint32_t> GuessOf(const DecodeSequence& sequence, Drafter drafter) {
  if (drafter == Drafter::kModel) return sequence.context->guess();
  if (drafter == Drafter::kNgram) return sequence.draft->guess();
  // The layer for MTP may have failed.
  return sequence.mtp == nullptr ? std::span<const uint32_t>() : sequence.mtp->record().guess();
}

}  // namespace

void Speculator::Begin(DecodeSequence& sequence, std::span<const uint32_t> tokens,
                       std::span<const float> hidden) const {
  if (!on()) return;
  // The layer's positions are those of all tokens, so it cannot follow an eviction.
  if (mtp_ != nullptr && !sequence.session->eviction) {
    sequence.mtp = std::make_unique<MtpContext>(sequence.last_token, hidden, mtp_->hidden_size(),
                                                1 + static_cast<size_t>(options_.tokens));
  }
  if (options_.ngrams) {
    const auto more = static_cast<size_t>(sequence.session->stop.tokens_max);
    sequence.draft = std::make_unique<SequenceDraft>(tokens, tokens.size() + more);
    sequence.draft->Observe(sequence.last_token);
  }
  if (draft_ == nullptr) return;
  sequence.context = std::make_unique<DraftContext>(
      std::vector<uint32_t>(tokens.begin(), tokens.end()), tokens.size());
  sequence.context->Observe(sequence.last_token);
}

void Speculator::ClearGuesses(const Batch& batch) const {
  for (const uint64_t id : batch.ids) {
    DecodeSequence& sequence = batch.sequences.at(id);
    sequence.guesses.clear();
    // The layer failed while the sequence was swapped out.
    if (mtp_ == nullptr) sequence.mtp.reset();
  }
}

void Speculator::Plan(const Batch& batch) {
  ClearGuesses(batch);
  if (!on() || batch.ids.empty()) return;
  std::vector<DraftOffers> offers;
  for (const uint64_t id : batch.ids) offers.push_back(OffersOf(batch.sequences.at(id)));
  const DraftPlan plan =
      draft_ == nullptr ? PlanWithMtp(batch, offers) : PlanWithModel(batch, std::move(offers));
  for (size_t i = 0; i < batch.ids.size(); ++i) {
    TakeGuesses(batch, batch.sequences.at(batch.ids[i]), plan.choices[i]);
  }
}

DraftPlan Speculator::Choose(std::span<const DraftOffers> offers, const DraftCosts& costs) {
  if (options_.random) return RandomDrafts(offers, options_.rows, random_);
  return ChooseDrafts(offers, costs, options_.rows);
}

void Speculator::PlanNone(const Batch& batch) {
  ClearGuesses(batch);
  if (mtp_ != nullptr) GuessByMtp(batch, std::vector<DraftChoice>(batch.ids.size()));
}

void Speculator::TakeGuesses(const Batch& batch, DecodeSequence& sequence,
                             const DraftChoice& choice) {
  if (choice.tokens == 0) return;
  sequence.drafter = choice.drafter;
  const std::span<const uint32_t> guess = GuessOf(sequence, choice.drafter);
  // The draft model's guess is missing if its pool is full.
  const auto count = std::min(guess.size(), static_cast<size_t>(choice.tokens));
  for (const uint32_t token : guess.first(count)) {
    // A guess takes no block that another sequence is about to need.
    if (!batch.grow(sequence, static_cast<int32_t>(sequence.guesses.size()) + 2)) return;
    sequence.guesses.push_back(token);
  }
}

// The last token of an answer needs no guess behind it, so that guesses stay within the credit of
// the longest answer and within the model's context.
int32_t Speculator::GuessesMax(const DecodeSequence& sequence) const {
  const int32_t open = sequence.session->stop.tokens_max - sequence.sampler.output_tokens();
  return std::min(options_.tokens, open - 1);
}

DraftOffers Speculator::OffersOf(DecodeSequence& sequence) const {
  DraftOffers offers;
  const int32_t most = GuessesMax(sequence);
  if (most <= 0) return offers;
  if (sequence.draft != nullptr) {
    sequence.draft->Guess(static_cast<size_t>(most));
    offers.ngram = {.tokens = static_cast<int32_t>(sequence.draft->guess().size()),
                    .acceptance = sequence.draft->acceptance()};
  }
  if (draft_ != nullptr && sequence.context != nullptr) {
    offers.model = {.tokens = std::min(most, draft_->Longest(*sequence.context)),
                    .acceptance = sequence.context->acceptance(draft_->acceptance())};
  }
  if (mtp_ != nullptr && sequence.mtp != nullptr && sequence.mtp->ready()) {
    offers.mtp = {.tokens = most,
                  .acceptance = sequence.mtp->record().acceptance(mtp_->acceptance())};
  }
  return offers;
}

void Speculator::EndStep(int64_t rows, std::optional<double> seconds) {
  if (seconds) cost_.Add(rows, *seconds);
  if (draft_ != nullptr) trial_.EndStep(draft_->acceptance_known());
  ++steps_;
}

uint32_t Speculator::CountChecked(DecodeSequence& sequence, size_t tokens) {
  const size_t guessed = std::exchange(sequence.guesses, {}).size();
  if (tokens == 0) return 0;
  const size_t right = tokens - 1;
  Counts& counts = counts_[static_cast<size_t>(sequence.drafter)];
  counts.checked += static_cast<int64_t>(guessed);
  counts.right += static_cast<int64_t>(right);
  if (draft_ != nullptr && sequence.context != nullptr) draft_->Count(*sequence.context);
  if (mtp_ != nullptr && sequence.mtp != nullptr) mtp_->Count(*sequence.mtp);
  return static_cast<uint32_t>(guessed - right);
}

}  // namespace penstock
