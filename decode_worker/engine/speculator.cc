#include "decode_worker/engine/speculator.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace penstock {

void Speculator::Begin(DecodeSequence& sequence, std::span<const uint32_t> tokens) const {
  if (!on()) return;
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

void Speculator::Plan(const Batch& batch) {
  for (const uint64_t id : batch.ids) batch.sequences.at(id).guesses.clear();
  if (!on() || batch.ids.empty()) return;
  std::vector<DraftOffers> offers;
  for (const uint64_t id : batch.ids) offers.push_back(OffersOf(batch.sequences.at(id)));
  const DraftPlan plan =
      draft_ == nullptr ? Choose(offers, nullptr) : PlanWithModel(batch, std::move(offers));
  for (size_t i = 0; i < batch.ids.size(); ++i) {
    TakeGuesses(batch, batch.sequences.at(batch.ids[i]), plan.choices[i]);
  }
}

DraftPlan Speculator::Choose(std::span<const DraftOffers> offers, const StepCost* model) {
  if (options_.random) return RandomDrafts(offers, options_.rows, random_);
  return ChooseDrafts(offers, {.target = cost_, .model = model}, options_.rows);
}

void Speculator::TakeGuesses(const Batch& batch, DecodeSequence& sequence,
                             const DraftChoice& choice) {
  if (choice.tokens == 0) return;
  sequence.drafter = choice.drafter;
  const bool model = choice.drafter == Drafter::kModel;
  const auto guess = model ? sequence.context->guess() : sequence.draft->guess();
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
  return offers;
}

void Speculator::EndStep(int64_t rows, std::optional<double> seconds) {
  if (seconds) cost_.Add(rows, *seconds);
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
  return static_cast<uint32_t>(guessed - right);
}

}  // namespace penstock
