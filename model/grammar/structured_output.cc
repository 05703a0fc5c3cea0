#include "model/grammar/structured_output.h"

#include "model/grammar/grammar.h"
#include "model/grammar/pattern_grammar.h"

namespace penstock {
namespace {

constexpr size_t kMaxChoices = 1000;
constexpr size_t kMaxChoiceBytes = 4096;
constexpr size_t kMaxEbnfBytes = 16 << 10;
constexpr int kMaxCount = 64;

absl::StatusOr<std::string> Checked(std::string grammar) {
  if (grammar.size() > kMaxGrammarBytes) {
    return InvalidArgument("becomes a grammar of {} bytes; the limit is {}", grammar.size(),
                           kMaxGrammarBytes);
  }
  RETURN_IF_ERROR(CheckGrammar(grammar));
  return grammar;
}

// The numbers in braces outside of literals and classes.
absl::Status CheckCounts(std::string_view ebnf) {
  char inside = '\0';  // what ends the literal or class
  bool counts = false;
  int number = 0;
  for (size_t i = 0; i < ebnf.size(); ++i) {
    const char c = ebnf[i];
    if (inside != '\0') {
      if (c == '\\') ++i;
      if (c == inside || c == '\n') inside = '\0';
      continue;
    }
    if (c == '"') inside = '"';
    if (c == '[') inside = ']';
    if (c == '#') inside = '\n';
    if (c == '{' || c == '}') counts = c == '{';
    number = counts && c >= '0' && c <= '9' ? number * 10 + (c - '0') : 0;
    if (number > kMaxCount) {
      return InvalidArgument("repeats more than {} times at byte {}, the limit of a repetition",
                             kMaxCount, i);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> RegexGrammar(std::string_view regex) {
  ASSIGN_OR_RETURN(const Pattern pattern, Pattern::Parse(regex));
  return Checked("root ::= " + PlainExpression(pattern) + "\n");
}

absl::StatusOr<std::string> ChoiceGrammar(const std::vector<std::string>& choices) {
  if (choices.empty() || choices.size() > kMaxChoices) {
    return InvalidArgument("has {} choices; it must have 1 to {}", choices.size(), kMaxChoices);
  }
  std::string grammar = "root ::= ";
  for (const std::string& choice : choices) {
    if (choice.empty() || choice.size() > kMaxChoiceBytes) {
      return InvalidArgument("has a choice of {} bytes; it must have 1 to {}", choice.size(),
                             kMaxChoiceBytes);
    }
    if (&choice != &choices.front()) grammar += " | ";
    grammar += Literal(choice);
  }
  return Checked(grammar + "\n");
}

absl::StatusOr<std::string> EbnfGrammar(std::string_view ebnf) {
  if (ebnf.empty() || ebnf.size() > kMaxEbnfBytes) {
    return InvalidArgument("has {} bytes; it must have 1 to {}", ebnf.size(), kMaxEbnfBytes);
  }
  RETURN_IF_ERROR(CheckCounts(ebnf));
  RETURN_IF_ERROR(CheckGrammarBegins(std::string(ebnf)));
  return std::string(ebnf);
}

}  // namespace penstock
