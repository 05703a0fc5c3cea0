#include "lab/fake/fake_model.h"

#include <algorithm>

namespace penstock {
namespace {

constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz ";

uint64_t Mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
  return hash ^ (hash >> 29);
}

}  // namespace

uint32_t FakeToken(std::span<const uint32_t> prompt, std::span<const uint32_t> answered,
                   uint64_t seed, uint32_t choice) {
  uint64_t hash = Mix(Mix(prompt.size(), seed), choice);
  for (const uint32_t token : prompt) hash = Mix(hash, token);
  for (const uint32_t token : answered) hash = Mix(hash, token);
  return static_cast<uint8_t>(kLetters[(hash >> 17) % kLetters.size()]);
}

std::string FakeAnswer(std::span<const uint32_t> prompt, uint64_t seed, uint32_t choice,
                       uint32_t count) {
  std::vector<uint32_t> answered;
  while (answered.size() < count) answered.push_back(FakeToken(prompt, answered, seed, choice));
  return {answered.begin(), answered.end()};
}

FakeChoice::FakeChoice(std::span<const uint32_t> tokens, uint32_t prompt_tokens,
                       const v1::SamplingSpec& sampling, uint32_t choice)
    : prompt_(tokens.begin(), tokens.begin() + prompt_tokens),
      answered_(tokens.begin() + prompt_tokens, tokens.end()),
      sampling_(sampling),
      choice_(choice) {}

v1::TokenOut FakeChoice::Next() {
  v1::TokenOut out;
  out.set_choice(choice_);
  out.set_position(position());
  out.set_token(FakeToken(prompt_, answered_, sampling_.seed(), choice_));
  out.set_logprob(-1.0f);
  for (uint32_t i = 0; i < sampling_.top_logprobs(); ++i) {
    out.add_top()->set_token(out.token() + i);
    out.mutable_top(static_cast<int>(i))->set_logprob(-1.0f - static_cast<float>(i));
  }
  answered_.push_back(out.token());
  const auto& stops = sampling_.stop_token_ids();
  if (std::find(stops.begin(), stops.end(), out.token()) != stops.end()) {
    out.set_finish(v1::TokenOut::STOP);
  } else if (answered_.size() >= sampling_.max_tokens()) {
    out.set_finish(v1::TokenOut::LENGTH);
  }
  ended_ = out.finish() != v1::TokenOut::GOING_ON;
  return out;
}

}  // namespace penstock
