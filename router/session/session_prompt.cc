// Session: what an answer has of the prompt, which is its text and the scores of its tokens.

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

// Gives the writers the prompt, before the first token of the answer.
void Session::ShowPrompt() {
  const bool wanted = request_.answer.echo || request_.answer.prompt_logprobs;
  if (!wanted || std::exchange(prompt_shown_, true)) return;
  for (ChoiceWriter& writer : writers_) writer.ShowPrompt(request_.echo, request_.prompt, scores_);
  scores_ = {};
}

}  // namespace penstock
