#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/status.h"
#include "proto/worker.pb.h"

namespace penstock {

// Consecutive open choices that have answered the same so far: one plan can serve them all.
struct ChoiceGroup {
  uint32_t first = 0;
  uint32_t count = 0;
  std::vector<uint32_t> answered;  // ids from position 0
};

// What a session has answered, choice by choice. Tokens come in from two workers and from several
// plans; they go out once each and in the order of their positions. Pure; one thread at a time.
class Journal {
 public:
  Journal(uint32_t choices, uint32_t max_tokens);

  // The tokens that this one puts in order: none when it is early, or of a choice that has ended;
  // else itself and what came early before. DATA_LOSS for what no honest worker sends: another
  // token at a position that was answered already, a choice or position beyond what was asked.
  absl::StatusOr<std::vector<v1::TokenOut>> Accept(const v1::TokenOut& token);

  // Nothing more is taken for this choice.
  void End(uint32_t choice);
  bool ended(uint32_t choice) const { return choices_[choice].ended; }
  // What the choice has answered: ids from position 0.
  const std::vector<uint32_t>& answered(uint32_t choice) const { return choices_[choice].answered; }
  bool all_ended(uint32_t first, uint32_t count) const;

  // Forgets what came early for these choices: the plan that it came from has failed.
  void DropEarly(uint32_t first, uint32_t count);
  // The open ones of these choices, grouped for new plans.
  std::vector<ChoiceGroup> OpenGroups(uint32_t first, uint32_t count) const;

 private:
  struct Choice {
    std::vector<uint32_t> answered;
    std::map<uint32_t, v1::TokenOut> early;  // by position; bounded by max_tokens_
    bool ended = false;
  };

  std::vector<Choice> choices_;
  const uint32_t max_tokens_;
};

}  // namespace penstock
