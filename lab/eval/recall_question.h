#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/tokenizer/tokenizer.h"

namespace penstock {

// The number that a prompt states and then asks for.
enum class RecallTask : uint8_t {
  kPassKey,  // "The pass key is 12345. Remember it. <text> What is the pass key? The pass key is "
  // "The code of amber is 4821. <text> The code of amber is ", with the codes of three other words
  // in the text. The model must find the word, not only a number.
  kCode,
};

struct RecallQuestion {
  std::vector<uint32_t> prompt;
  size_t stated_at = 0;          // where the number's sentence begins
  size_t asked_at = 0;           // where the question begins
  std::vector<uint32_t> answer;  // the digits of the number
};

// A question `distance` tokens behind its statement, in passages of `text`. The pieces are
// tokenized one by one: digits stand for themselves.
absl::StatusOr<RecallQuestion> MakeRecallQuestion(RecallTask task, int32_t distance,
                                                  const Tokenizer& tokenizer,
                                                  std::span<const uint32_t> text,
                                                  std::mt19937_64& engine);

}  // namespace penstock
