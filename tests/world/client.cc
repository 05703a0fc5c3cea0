#include "tests/world/client.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lab/world/machine/scheduler.h"

namespace penstock::world {
namespace {

v1::GenerateRequest RequestOf(const RequestPlan& plan, int number) {
  v1::GenerateRequest request;
  request.set_client_request_id(fmt::format("request-{}", number));
  request.mutable_tokens()->mutable_ids()->Assign(plan.prompt.begin(), plan.prompt.end());
  v1::SamplingParams& sampling = *request.mutable_sampling();
  sampling.set_temperature(plan.temperature);
  sampling.set_top_p(plan.top_p);
  sampling.set_frequency_penalty(plan.frequency_penalty);
  sampling.set_repetition_penalty(plan.repetition_penalty);
  sampling.set_seed(static_cast<int64_t>(plan.seed));
  sampling.set_n(plan.choices);
  v1::StopConditions& stop = *request.mutable_stop();
  stop.set_max_tokens(plan.max_tokens);
  stop.set_min_tokens(plan.min_tokens);
  for (const std::string& text : plan.stops) stop.add_stop(text);
  stop.set_include_stop_in_output(plan.include_stop);
  v1::OutputOptions& output = *request.mutable_output();
  output.set_return_token_ids(true);
  if (plan.top_logprobs >= 0) {
    output.set_top_logprobs(static_cast<uint32_t>(plan.top_logprobs));
  }
  output.set_timing(number % 4 != 0);
  request.mutable_cache()->set_salt(plan.salt);
  request.set_priority(plan.priority);
  request.set_kv_policy(plan.kv_policy);
  return request;
}

// True when `part` is how `whole` begins, or all of it if `ended`.
template <class T>
bool Begins(const T& whole, const T& part, bool ended) {
  return part.size() <= whole.size() && std::equal(part.begin(), part.end(), whole.begin()) &&
         (!ended || part.size() == whole.size());
}

}  // namespace

SimClient::SimClient(const RequestPlan& plan, int number, const std::vector<uint64_t>& models)
    : plan_(plan), number_(number), request_(RequestOf(plan, number)), choices_(plan.choices) {
  for (const uint64_t model : models) answers_.push_back(Expect(plan, model));
  undisturbed_ = answers_;
}

size_t SimClient::SharedWith(const SimClient& other) const {
  const std::vector<uint32_t>& mine = plan_.prompt;
  const auto shared = [&mine](size_t from, const std::vector<uint32_t>& theirs) {
    const auto end = std::mismatch(mine.begin() + static_cast<ptrdiff_t>(from), mine.end(),
                                   theirs.begin(), theirs.end());
    return static_cast<size_t>(end.first - mine.begin());
  };
  const size_t prompt = shared(0, other.plan_.prompt);
  if (prompt < other.plan_.prompt.size()) return prompt;
  size_t most = prompt;
  for (const std::vector<ExpectedChoice>& answer : other.undisturbed_) {
    for (const ExpectedChoice& choice : answer) {
      size_t common = shared(prompt, choice.tokens);
      if (common == prompt + choice.tokens.size()) common = shared(common, choice.hidden_tokens);
      most = std::max(most, common);
    }
  }
  return most;
}

TimePoint SimClient::deadline() {
  if (plan_.deadline == Duration::zero()) return TimePoint::max();
  if (!deadline_) deadline_ = SteadyClock().Now() + plan_.deadline;
  return *deadline_;
}

void SimClient::Blame(std::string what) {
  if (wrong_.empty()) wrong_ = fmt::format("request {}: {}", number_, what);
}

void SimClient::Send(v1::GenerateResponse response) {
  if (finished_) Blame("a message came behind the end");
  if (response.has_chunk()) OnChunk(response.chunk());
  if (response.has_final()) OnFinal(response.final());
  Check();
}

void SimClient::OnChunk(const v1::Chunk& chunk) {
  if (chunk.index() >= choices_.size()) return Blame("an unknown choice");
  Choice& choice = choices_[chunk.index()];
  if (choice.ended) return Blame(fmt::format("choice {} goes on behind its end", chunk.index()));
  if (chunk.sequence() != choice.tokens.size()) {
    return Blame(fmt::format("choice {}: a chunk at {} follows {} tokens", chunk.index(),
                             chunk.sequence(), choice.tokens.size()));
  }
  if (first_token_ == Duration::zero()) first_token_ = SteadyClock().Now() - arrived_;
  tokens_ += static_cast<size_t>(chunk.token_ids_size());
  choice.tokens.insert(choice.tokens.end(), chunk.token_ids().begin(), chunk.token_ids().end());
  choice.text += chunk.text();
  if (plan_.top_logprobs < 0) return;
  if (chunk.logprobs_size() != chunk.token_ids_size()) return Blame("logprobs are missing");
  for (const v1::TokenLogprob& logprob : chunk.logprobs()) {
    choice.logprobs.push_back(logprob.logprob());
  }
}

void SimClient::OnFinal(const v1::Final& final) {
  if (final.index() >= choices_.size()) return Blame("an unknown choice ended");
  if (std::exchange(choices_[final.index()].ended, true)) Blame("a choice ended twice");
  migrations_ += final.timing().migrations();
  if (final.has_usage()) usage_ = final.usage();
  if (Approximates()) return;
  std::erase_if(answers_, [&](const std::vector<ExpectedChoice>& answer) {
    return answer[final.index()].finish != final.finish_reason();
  });
  if (answers_.empty()) Blame(fmt::format("choice {} ended wrongly", final.index()));
}

bool SimClient::Fits(const std::vector<ExpectedChoice>& answer) const {
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Choice& choice = choices_[i];
    if (!Begins(answer[i].tokens, choice.tokens, choice.ended)) return false;
    if (!Begins(answer[i].text, choice.text, choice.ended)) return false;
    if (!Begins(answer[i].logprobs, choice.logprobs, false)) return false;
  }
  return true;
}

void SimClient::Check() {
  if (!wrong_.empty()) return;
  std::erase_if(answers_, [this](const auto& answer) { return !Fits(answer); });
  if (!answers_.empty()) return;
  lossy_ = Approximates();
  if (lossy_) return;
  std::string all;
  for (const Choice& choice : choices_) {
    all += fmt::format(" [{} tokens] {}{}", choice.tokens.size(), choice.text,
                       choice.ended ? "." : "...");
  }
  Blame("a wrong token:" + all);
}

void SimClient::OnRouterDeath() {
  if (std::exchange(finished_, true)) return;
  status_ = absl::UnavailableError("the connection to the router is reset");
  AbandonDriver();
}

void SimClient::Finish(const absl::Status& status) {
  if (std::exchange(finished_, true)) return Blame("ended twice");
  status_ = status;
  LetDriverGo();
  const bool all = std::all_of(choices_.begin(), choices_.end(),
                               [](const Choice& choice) { return choice.ended; });
  if (status.ok() && !all) Blame("ended with OK before its choices");
}

}  // namespace penstock::world
