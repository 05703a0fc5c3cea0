#pragma once

#include <set>
#include <string>
#include <utility>

namespace penstock {

// Writes the rules of JSON strings of bounded length, one for each number of characters that may
// still follow: unlike a counter, such rules have masks that are computed once, when the grammar is
// compiled, and grammars share them. One grammar; one thread.
class CountedStrings {
 public:
  static constexpr int kMost = 64;  // characters that are counted; more need a counter

  // Rules are named `prefix` and two numbers.
  explicit CountedStrings(std::string prefix) : prefix_(std::move(prefix)) {}

  // The name of the rule of strings, behind their first quote, of at least `least` and at most
  // `most` code points, both up to kMost; `most` < 0: without limit. An escape is one code point,
  // and so is a pair of \u escapes that stand for one.
  std::string RuleOf(int least, int most);

  // All rules that RuleOf named.
  const std::string& rules() const { return rules_; }

 private:
  const std::string prefix_;
  std::set<std::pair<int, int>> written_;
  std::string rules_;
};

}  // namespace penstock
