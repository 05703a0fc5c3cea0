// Session: answers that begin with the prompt, and the scores of its tokens.

#include <utility>

#include "router/session/session.h"

namespace penstock {

// Until the prompt has been echoed, attempts ask for the scores of its tokens.
bool Session::WantsScores() const { return request_.answer.scores_prompt() && !prompt_echoed_; }

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
void Session::EchoPrompt() {
  if (!request_.answer.echo || std::exchange(prompt_echoed_, true)) return;
  for (ChoiceWriter& writer : writers_) writer.Echo(request_.echo, request_.prompt, scores_);
  scores_ = {};
}

}  // namespace penstock
