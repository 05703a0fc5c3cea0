// DecodeEngine: speculation. A guess is checked by one more row of the step, whose token is drawn
// as it would be without the guess, so that answers do not change (docs/adr/0046-speculation.md).

#include <algorithm>
#include <utility>

#include "decode_worker/decode_engine.h"

namespace penstock {

// `tokens` are those before the sequence's last token.
void DecodeEngine::BeginDraft(DecodeSequence& sequence, std::span<const uint32_t> tokens) {
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

// Chooses the guesses that the next step checks.
void DecodeEngine::PlanDrafts(std::span<const uint64_t> batch) {
  for (const uint64_t id : batch) sequences_.at(id).guesses.clear();
  if (!speculates() || batch.empty()) return;
  std::vector<DraftOffers> offers;
  for (const uint64_t id : batch) offers.push_back(OffersOf(sequences_.at(id)));
  const DraftPlan plan = draft_ == nullptr
                             ? ChooseDrafts(offers, {.target = cost_}, options_.draft_rows)
                             : PlanWithModel(batch, std::move(offers));
  for (size_t i = 0; i < batch.size(); ++i) {
    TakeGuesses(sequences_.at(batch[i]), plan.choices[i]);
  }
}

void DecodeEngine::TakeGuesses(DecodeSequence& sequence, const DraftChoice& choice) {
  if (choice.tokens == 0) return;
  sequence.drafter = choice.drafter;
  const bool model = choice.drafter == Drafter::kModel;
  const auto guess = model ? sequence.context->guess() : sequence.draft->guess();
  // The draft model's guess is missing if its pool is full.
  const auto count = std::min(guess.size(), static_cast<size_t>(choice.tokens));
  for (const uint32_t token : guess.first(count)) {
    // A guess takes no block that another sequence is about to need.
    if (!Grow(sequence, static_cast<int32_t>(sequence.guesses.size()) + 2)) return;
    sequence.guesses.push_back(token);
  }
}

// The last token of an answer needs no guess behind it, so that guesses stay within the credit of
// the longest answer and within the model's context.
int32_t DecodeEngine::GuessesMax(const DecodeSequence& sequence) const {
  const int32_t open = sequence.session->stop.tokens_max - sequence.sampler.output_tokens();
  return std::min(options_.draft_tokens, open - 1);
}

DraftOffers DecodeEngine::OffersOf(DecodeSequence& sequence) {
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

// Adds the sequence's next token and its guesses, each as a part of its own: rows of one token are
// computed as in a step without guesses, by the same kernels.
void DecodeEngine::AddRows(DecodeSequence& sequence, std::vector<SequenceStep>& steps) {
  for (size_t row = 0; row <= sequence.guesses.size(); ++row) {
    const uint32_t& token = row == 0 ? sequence.last_token : sequence.guesses[row - 1];
    steps.push_back({.tokens = std::span(&token, 1),
                     .position = sequence.position() + static_cast<int32_t>(row),
                     .blocks = sequence.table,
                     .evicted = sequence.evicted});
    const bool ranks = sequence.session->beams != nullptr;
    outputs_.Want(steps.back(), ranks ? std::vector<DrawSpec>()
                                      : sequence.sampler.OwnDraws(static_cast<int32_t>(row)));
  }
}

// Tells the sink the tokens of one step. All but the last were guessed right.
void DecodeEngine::TellTokens(DecodeSequence& sequence, std::vector<v1::TokenOut> tokens) {
  const size_t guessed = std::exchange(sequence.guesses, {}).size();
  if (tokens.empty()) return;
  const size_t right = tokens.size() - 1;
  GuessCounts& counts = guesses_[static_cast<size_t>(sequence.drafter)];
  counts.checked += static_cast<int64_t>(guessed);
  counts.right += static_cast<int64_t>(right);
  if (draft_ != nullptr && sequence.context != nullptr) draft_->Count(*sequence.context);
  tokens.back().set_rejected_guesses(static_cast<uint32_t>(guessed - right));
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i].set_more_in_step(static_cast<uint32_t>(right - i));
    sequence.session->sink->OnToken(std::move(tokens[i]));
  }
}

}  // namespace penstock
