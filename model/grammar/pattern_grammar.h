#pragma once

#include <string>

#include "model/grammar/pattern.h"

namespace penstock {

// A grammar's expression for the texts that match the whole pattern, as XGrammar's EBNF writes it.
// Pure.
std::string PlainExpression(const Pattern& pattern);

// The same for JSON strings, without their quotes, whose value contains a match of the pattern (as
// JSON Schema says). A character that JSON must escape is written by its short escape, every other
// one as it is.
std::string JsonExpression(const Pattern& pattern);

// A character of a JSON string; with `escapes` also "\n" and its siblings, with `units` also
// "\u0041".
std::string JsonCharacter(bool escapes, bool units);

// `text` as a literal of a grammar.
std::string Literal(std::string_view text);

}  // namespace penstock
