#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "proto/worker.pb.h"

namespace penstock {

// A "model" whose next token, a letter or a space, is a hash of everything before it: a prompt or
// answer that was lost, doubled or swapped on the way changes all that follows.
uint32_t FakeToken(std::span<const uint32_t> prompt, std::span<const uint32_t> answered,
                   uint64_t seed, uint32_t choice);

// The first `count` tokens of an answer, as text.
std::string FakeAnswer(std::span<const uint32_t> prompt, uint64_t seed, uint32_t choice,
                       uint32_t count);

// One choice as a worker of this model samples it. `tokens` is a prompt and what was answered.
class FakeChoice {
 public:
  FakeChoice(std::span<const uint32_t> tokens, uint32_t prompt_tokens,
             const v1::SamplingSpec& sampling, uint32_t choice);
  v1::TokenOut Next();
  bool ended() const { return ended_; }
  uint32_t position() const { return static_cast<uint32_t>(answered_.size()); }

 private:
  std::vector<uint32_t> prompt_;
  std::vector<uint32_t> answered_;
  v1::SamplingSpec sampling_;
  uint32_t choice_;
  bool ended_ = false;
};

}  // namespace penstock
