#include "model/grammar/schema_strings.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/grammar/pattern_grammar.h"

namespace penstock {
namespace {

// Behind the backslash. A surrogate comes only in a pair.
constexpr std::string_view kEscape =
    R"(["\\/bfnrt] | "u" [0-9A-CE-Fa-ce-f] [0-9A-Fa-f] [0-9A-Fa-f] [0-9A-Fa-f])"
    R"( | "u" [Dd] [0-7] [0-9A-Fa-f] [0-9A-Fa-f])"
    R"( | "u" [Dd] [89ABab] [0-9A-Fa-f] [0-9A-Fa-f] "\\u" [Dd] [C-Fc-f] [0-9A-Fa-f] [0-9A-Fa-f])";
// A string is followed by a mark or nothing. The library then knows more tokens in advance.
constexpr std::string_view kBehind = R"((=([ \n\r\t]* [,}\]:])))";

}  // namespace

std::string CountedStrings::RuleOf(int least, int most) {
  const std::string name =
      fmt::format("{}_{}_{}", prefix_, least, most < 0 ? "more" : std::to_string(most));
  if (!written_.emplace(least, most).second) return name;
  if (written_.size() == 1) rules_ += fmt::format("{}_escape ::= {}\n", prefix_, kEscape);
  std::string rule = least == 0 ? R"("\"")" : "";
  if (most != 0) {
    const std::string next = RuleOf(std::max(least - 1, 0), most < 0 ? most : most - 1);
    if (!rule.empty()) rule += " | ";
    rule += fmt::format(R"({} {} | "\\" {}_escape {})", JsonCharacter(false, false), next, prefix_,
                        next);
  }
  rules_ += fmt::format("{} ::= ({}) {}\n", name, rule, kBehind);
  return name;
}

}  // namespace penstock
