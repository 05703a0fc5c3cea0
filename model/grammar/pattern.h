#pragma once

#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/grammar/codepoint_set.h"

namespace penstock {

// A part of a regular expression: one code point of a set, parts in a row, one of several parts, or
// a part that is repeated `min` to `max` times (-1: without limit).
struct PatternNode {
  enum class Kind { kSet, kSequence, kChoice, kRepeat };
  Kind kind = Kind::kSequence;
  CodepointSet set;
  std::vector<PatternNode> parts;
  int min = 0;
  int max = 0;
};

// A regular expression of ECMA-262 (the dialect of JSON Schema) that describes a regular language:
// alternatives, each of which may be anchored at its two ends.
struct Pattern {
  struct Alternative {
    PatternNode node;
    bool at_begin = false;  // begins with ^
    bool at_end = false;    // ends with $
  };
  std::vector<Alternative> alternatives;

  static constexpr size_t kMaxBytes = 4096;
  static constexpr int kMaxDepth = 32;  // groups within groups
  static constexpr int kMaxCount = 64;  // of {m,n}
  static constexpr int kMaxWeight =
      1024;  // of the expanded pattern: a set of over 1,000 code points weighs 16, others 1

  // INVALID_ARGUMENT names the byte at which the text is no pattern, or uses what a grammar cannot
  // express (look-around, references to groups, \b, \p), or the limit that is exceeded. Recursion
  // is bounded. Pure.
  static absl::StatusOr<Pattern> Parse(std::string_view text);
};

}  // namespace penstock
