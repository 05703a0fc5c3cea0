#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace penstock {

// The longest grammar that a request may become.
inline constexpr size_t kMaxGrammarBytes = 256 << 10;

// Grammars (grammar.h) of what clients ask for. INVALID_ARGUMENT says what is not supported, and
// the limits. Pure.

// A text that matches the whole regular expression (Pattern).
absl::StatusOr<std::string> RegexGrammar(std::string_view regex);
// One of up to 1,000 texts, which are not empty.
absl::StatusOr<std::string> ChoiceGrammar(const std::vector<std::string>& choices);
// The client's own grammar: EBNF with the rule `root`, of up to 16 KiB, with repetitions of up
// to 64.
absl::StatusOr<std::string> EbnfGrammar(std::string_view ebnf);

}  // namespace penstock
