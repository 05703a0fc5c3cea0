#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/status.h"
#include "proto/worker.pb.h"

namespace penstock {

// Consecutive open choices with the same tokens so far: one attempt can serve them all.
struct ChoiceGroup {
  uint32_t first = 0;              // index of the first choice
  uint32_t count = 0;              // number of choices
  std::vector<uint32_t> answered;  // token ids from position 0
};

// The tokens that a session has answered, by choice. Tokens arrive from two workers and from
// several attempts, with duplicates and out of order; the journal lets each pass once and in the
// order of positions. Pure; one thread at a time.
class Journal {
 public:
  Journal(uint32_t choices, uint32_t max_tokens);

  // Adds a token. Returns the tokens that are now in order: the token itself and later ones that
  // arrived before it; none when an earlier one is missing, it is a duplicate, or the choice has
  // ended. DATA_LOSS when a worker has a fault: a different token at an answered position, or a
  // choice or position that was not requested.
  absl::StatusOr<std::vector<v1::TokenOut>> Accept(const v1::TokenOut& token);

  // Ends the choice: its later tokens are ignored.
  void End(uint32_t choice);
  bool ended(uint32_t choice) const { return choices_[choice].ended; }
  // The choice's token ids from position 0.
  const std::vector<uint32_t>& answered(uint32_t choice) const { return choices_[choice].answered; }
  bool all_ended(uint32_t first, uint32_t count) const;

  // Drops the out-of-order tokens of these choices: the attempt that sent them has failed.
  void DropEarly(uint32_t first, uint32_t count);
  // The open choices among these, grouped for new attempts.
  std::vector<ChoiceGroup> OpenGroups(uint32_t first, uint32_t count) const;

 private:
  struct Choice {
    std::vector<uint32_t> answered;
    std::map<uint32_t, v1::TokenOut> early;  // out-of-order tokens by position; at most max_tokens_
    bool ended = false;
  };

  std::vector<Choice> choices_;
  const uint32_t max_tokens_;
};

}  // namespace penstock
