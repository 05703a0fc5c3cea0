// DecodeEngine: speculation. A guess is checked by one more row of the step, whose token is drawn
// as it would be without the guess, so that answers do not change (docs/adr/0046-speculation.md).

#include <algorithm>
#include <utility>

#include "decode_worker/decode_engine.h"

namespace penstock {

// `tokens` are those before the sequence's last token.
void DecodeEngine::BeginDraft(DecodeSequence& sequence, std::span<const uint32_t> tokens) {
  const auto more = sequence.session->stop.tokens_max;
  sequence.draft =
      std::make_unique<SequenceDraft>(tokens, tokens.size() + static_cast<size_t>(more));
  sequence.draft->Observe(sequence.last_token);
}

// Chooses the guesses that the next step checks.
void DecodeEngine::PlanDrafts(std::span<const uint64_t> batch) {
  for (const uint64_t id : batch) sequences_.at(id).guesses.clear();
  if (!speculates()) return;
  std::vector<DraftOffer> offers;
  for (const uint64_t id : batch) offers.push_back(OfferOf(sequences_.at(id)));
  const std::vector<int32_t> lengths = ChooseDraftLengths(offers, cost_, options_.draft_rows);
  for (size_t i = 0; i < batch.size(); ++i) {
    DecodeSequence& sequence = sequences_.at(batch[i]);
    // A guess takes no block that another sequence is about to need.
    for (int32_t more = 1; more <= lengths[i] && Grow(sequence, more + 1); ++more) {
      sequence.guesses.push_back(sequence.draft->guess()[static_cast<size_t>(more - 1)]);
    }
  }
}

// The last token of an answer needs no guess behind it, so that guesses stay within the credit of
// the longest answer and within the model's context.
DraftOffer DecodeEngine::OfferOf(DecodeSequence& sequence) {
  const int32_t open = sequence.session->stop.tokens_max - sequence.sampler.output_tokens();
  const int32_t most = std::min(options_.draft_tokens, open - 1);
  if (sequence.draft == nullptr || most <= 0) return {};
  sequence.draft->Guess(static_cast<size_t>(most));
  return {.tokens = static_cast<int32_t>(sequence.draft->guess().size()),
          .acceptance = sequence.draft->acceptance()};
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
  drafted_ += static_cast<int64_t>(guessed);
  accepted_ += static_cast<int64_t>(right);
  tokens.back().set_rejected_guesses(static_cast<uint32_t>(guessed - right));
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i].set_more_in_step(static_cast<uint32_t>(right - i));
    sequence.session->sink->OnToken(std::move(tokens[i]));
  }
}

}  // namespace penstock
