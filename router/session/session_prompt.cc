// Session: what an answer has of the prompt, which is its text, the scores of its tokens, and its
// embedding.

#include <utility>

#include "router/session/session.h"

namespace penstock {

// Until the prompt has been shown, attempts ask for the scores of its tokens.
bool Session::WantsScores() const { return request_.answer.scores_prompt() && !prompt_shown_; }

void Session::AcceptScores(int number, const v1::PromptScores& scores, TimePoint now) {
  if (!WantsScores()) return;
  const size_t next = scores_.size() + 1;
  const auto count = static_cast<size_t>(scores.tokens_size());
  if (scores.first_position() != next || count > request_.prompt.size() - next) {
    return Fail(
        number,
        {Side::kPrefill,
         DataLoss("scores of {} tokens from position {} on; expected were scores from {} on", count,
                  scores.first_position(), next)},
        now);
  }
  scores_.insert(scores_.end(), scores.tokens().begin(), scores.tokens().end());
}

void Session::AcceptHiddenState(int number, const v1::HiddenState& state, TimePoint now) {
  const std::optional<EmbeddingSpec>& spec = request_.answer.embedding;
  if (!spec) return;
  const auto size = static_cast<size_t>(state.values_size());
  if (size != spec->hidden) {
    return Fail(number,
                {Side::kPrefill,
                 DataLoss("a hidden state of {} dimensions; expected were {}", size, spec->hidden)},
                now);
  }
  if (state.mean() != (spec->pooling == Pooling::kMean)) {  // a worker of an older release
    return Fail(number,
                {Side::kPrefill,
                 DataLoss("the hidden state {} the mean of all tokens, which was {} for",
                          state.mean() ? "is" : "is not", state.mean() ? "not asked" : "asked")},
                now);
  }
  writers_.front().ShowEmbedding(MakeEmbedding({state.values().data(), size}, *spec));
}

// DATA_LOSS if the first token came before all that the answer has of the prompt.
absl::Status Session::CheckPromptKnown() const {
  if (WantsScores() && scores_.size() + 1 != request_.prompt.size()) {
    return DataLoss("a first token came with the scores of {} of {} prompt tokens", scores_.size(),
                    request_.prompt.size() - 1);
  }
  if (request_.answer.embedding && writers_.front().ending().embedding().empty()) {
    return DataLoss("a first token came without the prompt's hidden state");
  }
  return absl::OkStatus();
}

// Gives the writers the prompt, before the first token of the answer.
void Session::ShowPrompt() {
  const bool wanted = request_.answer.echo || request_.answer.prompt_logprobs;
  if (!wanted || std::exchange(prompt_shown_, true)) return;
  for (ChoiceWriter& writer : writers_) writer.ShowPrompt(request_.echo, request_.prompt, scores_);
  scores_ = {};
}

}  // namespace penstock
