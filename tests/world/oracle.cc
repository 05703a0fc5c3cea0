#include "tests/world/oracle.h"

#include <algorithm>

#include "model/sampler/sampler.h"
#include "tests/world/model.h"

namespace penstock::world {
namespace {

// A context that grows by tokens.
class Context {
 public:
  explicit Context(uint64_t model) : model_(model) {}
  void Add(uint32_t token) {
    last_ = KvOf(model_, token, position_++, last_);
    digest_ = Digest(digest_, last_);
  }
  std::vector<float> Logits() const {
    std::vector<float> logits(kVocab);
    FillLogits(digest_, logits);
    return logits;
  }

 private:
  const uint64_t model_;
  TokenKv last_;
  uint64_t digest_ = 0;
  int32_t position_ = 0;
};

SamplingParams ParamsOf(const RequestPlan& request) {
  return {.temperature = request.temperature,
          .top_p = request.top_p,
          .frequency_penalty = request.frequency_penalty,
          .repetition_penalty = request.repetition_penalty,
          .seed = request.seed,
          .stop_token_ids = {kEndToken},
          .min_tokens = static_cast<int32_t>(request.min_tokens),
          .top_logprobs = std::max(request.top_logprobs, 0)};
}

// The length of `text` up to the end of the first stop string in it, and that string; 0: none.
size_t FindStop(const RequestPlan& request, const std::string& text, size_t from,
                std::string* found) {
  size_t first = std::string::npos;
  for (const std::string& stop : request.stops) {
    const size_t at = text.find(stop, from);
    if (at == std::string::npos) continue;
    const size_t end = at + stop.size();
    if (end > first || (end == first && stop.size() <= found->size())) continue;
    first = end;
    *found = stop;
  }
  return first == std::string::npos ? 0 : first;
}

bool StoppedByText(const ExpectedChoice& choice) {
  return choice.finish == v1::STOP && choice.tokens.back() != kEndToken;
}

// Every letter is a token, so that text and tokens have equal lengths.
ExpectedChoice ExpectChoice(const RequestPlan& request, Context context, uint32_t choice) {
  ExpectedChoice expected;
  Sampler sampler(ParamsOf(request), choice, request.prompt);
  while (expected.finish == v1::FINISH_REASON_UNSPECIFIED) {
    std::vector<float> logits = context.Logits();
    const SampledToken sampled = sampler.Sample(logits);
    context.Add(sampled.id);
    expected.tokens.push_back(sampled.id);
    expected.logprobs.push_back(sampled.logprob);
    if (sampled.id == kEndToken) {
      expected.finish = v1::STOP;
      continue;
    }
    expected.text += static_cast<char>(sampled.id);
    std::string stop;
    const size_t end = FindStop(request, expected.text, request.min_tokens, &stop);
    if (end > 0) {
      expected.text.resize(request.include_stop ? end : end - stop.size());
      expected.finish = v1::STOP;
    } else if (expected.tokens.size() == request.max_tokens) {
      expected.finish = v1::LENGTH;
    }
  }
  while (StoppedByText(expected) &&
         expected.tokens.size() + expected.hidden_tokens.size() < request.max_tokens) {
    std::vector<float> logits = context.Logits();
    expected.hidden_tokens.push_back(sampler.Sample(logits).id);
    context.Add(expected.hidden_tokens.back());
    if (expected.hidden_tokens.back() == kEndToken) break;
  }
  return expected;
}

}  // namespace

std::vector<ExpectedChoice> Expect(const RequestPlan& request, uint64_t model) {
  Context context(model);
  for (const uint32_t token : request.prompt) context.Add(token);
  std::vector<ExpectedChoice> choices;
  for (uint32_t i = 0; i < request.choices; ++i) {
    choices.push_back(ExpectChoice(request, context, i));
  }
  return choices;
}

}  // namespace penstock::world
