#include "model/output/output_grammar.h"

#include "base/check.h"
#include "model/grammar/grammar.h"
#include "model/grammar/grammar_join.h"
#include "model/grammar/pattern_grammar.h"
#include "model/grammar/structured_output.h"

namespace penstock {
namespace {

using Calls = OutputRules::Calls;

constexpr int kMaxCalls = 128;

std::string LiteralOf(std::string_view a, std::string_view b = "") {
  return Literal(std::string(a) + std::string(b));
}

std::string_view StopOf(const ReasoningNotation& notation) {
  return notation.stop.empty() ? notation.end : notation.stop;
}

class Writer {
 public:
  explicit Writer(const OutputRules& rules) : rules_(rules) {}

  std::string Write() {
    for (const CallableTool& tool : rules_.tools) roots_.push_back(join_.Add(tool.arguments));
    if (!rules_.structured.empty()) roots_.push_back(join_.Add(rules_.structured));
    const std::string shared = join_.Rules(roots_);
    const std::string body = Body();
    if (body.empty()) return "";
    return Root() + "body ::= " + body + "\n" + more_ + shared;
  }

 private:
  std::string Root() const {
    if (rules_.reasoning == nullptr) return "root ::= body\n";
    const ReasoningNotation& notation = *rules_.reasoning;
    const std::string begin = Literal(notation.begin), end = Literal(notation.end);
    std::string root;
    if (notation.messages()) {
      root = fmt::format("{}message* body\nmessage ::= ({} thought{}) {}",
                         rules_.reasoning_begun ? "thought " + end + " " : "", begin,
                         HasText() ? " | " + Opened("text") : "", end);
    } else {
      root = fmt::format("thought {} [\\n ]{{0,4}} body", end);
      if (!rules_.reasoning_begun) root = begin + " " + root + " | body";
    }
    return fmt::format("root ::= {}\nthought ::= TagDispatch(excludes=({}))\n", root,
                       Literal(StopOf(notation)));
  }

  // True if content may be any text, in a rule `text` if an answer is messages.
  bool HasText() const {
    return rules_.structured.empty() &&
           (rules_.calls == Calls::kForbidden || rules_.calls == Calls::kAllowed);
  }
  bool HasMessages() const { return rules_.reasoning != nullptr && rules_.reasoning->messages(); }

  // `content`, behind what begins it.
  std::string Opened(const std::string& content) const {
    if (!HasMessages()) return content;
    const auto& begins = rules_.reasoning->content_begins;
    std::string opened = Literal(begins[0]);
    for (const std::string_view begin : begins.subspan(1)) {
      if (HasText()) opened += " | " + Literal(begin);
    }
    return fmt::format("({}) {}", opened, content);
  }

  std::string Body() {
    if (rules_.calls == Calls::kAllowed || rules_.calls == Calls::kRequired) WriteCalls();
    std::string content = Content();
    switch (rules_.calls) {
      case Calls::kNone:
      case Calls::kForbidden:
        return content;
      case Calls::kAllowed:
        if (HasText() && !HasMessages()) return content;
        return fmt::format("{} calls | {}", Literal(rules_.notation->trigger), content);
      case Calls::kRequired:
        return Literal(rules_.notation->trigger) + " calls";
    }
    return "";
  }

  // An answer without calls, or text that may end with calls. Empty: any text.
  std::string Content() {
    if (!rules_.structured.empty()) return Opened(roots_.back());
    if (!HasText()) return "";
    const std::string trigger = Literal(rules_.notation->trigger);
    if (HasMessages()) {
      more_ += fmt::format("text ::= TagDispatch(excludes=({}, {}))\n", trigger,
                           Literal(StopOf(*rules_.reasoning)));
      return Opened("text");
    }
    return rules_.calls == Calls::kForbidden
               ? fmt::format("TagDispatch(excludes=({}))", trigger)
               : fmt::format("TagDispatch(({}, calls), loop_after_dispatch=false)", trigger);
  }

  // The rule `calls`: all that follows the trigger.
  void WriteCalls() {
    const CallNotation& notation = *rules_.notation;
    const std::string opening =
        std::string(notation.section_begin) + std::string(notation.call_begin);
    PENSTOCK_CHECK(opening.starts_with(notation.trigger));
    const std::string again = LiteralOf(notation.separator, notation.call_begin);
    const bool several = notation.parallel && !rules_.single;
    more_ += fmt::format(
        "calls ::= {} call {}{}\n", Literal(opening.substr(notation.trigger.size())),
        several ? fmt::format("more{{0,{}}} ", kMaxCalls - 1) : "", Literal(notation.section_end));
    if (several) more_ += fmt::format("more ::= {} call\n", again);
    more_ += "call ::= ";
    for (size_t i = 0; i < rules_.tools.size(); ++i) {
      more_ += fmt::format("{}{} {} {}", i == 0 ? "" : " | ",
                           LiteralOf(rules_.tools[i].name, notation.name_end), roots_[i],
                           Literal(notation.call_end));
    }
    more_ += "\n";
  }

  const OutputRules& rules_;
  GrammarJoin join_;
  std::vector<std::string> roots_;  // of the tools, then of `structured`
  std::string more_;
};

}  // namespace

absl::StatusOr<std::string> OutputGrammar(const OutputRules& rules) {
  std::string grammar = Writer(rules).Write();
  if (grammar.empty()) return grammar;
  if (grammar.size() > kMaxGrammarBytes) {
    return InvalidArgument("becomes a grammar of {} bytes; the limit is {}", grammar.size(),
                           kMaxGrammarBytes);
  }
  RETURN_IF_ERROR(CheckGrammar(grammar));
  return grammar;
}

}  // namespace penstock
