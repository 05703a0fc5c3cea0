#include "model/grammar/pattern.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/utf8.h"

namespace penstock {
namespace {

using Kind = PatternNode::Kind;

const CodepointSet& Digits() {
  static const CodepointSet kDigits({{'0', '9'}});
  return kDigits;
}
const CodepointSet& Words() {
  static const CodepointSet kWords({{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}});
  return kWords;
}
const CodepointSet& Spaces() {
  static const CodepointSet kSpaces({{'\t', '\r'},
                                     {' ', ' '},
                                     {0xA0, 0xA0},
                                     {0x1680, 0x1680},
                                     {0x2000, 0x200A},
                                     {0x2028, 0x2029},
                                     {0x202F, 0x202F},
                                     {0x205F, 0x205F},
                                     {0x3000, 0x3000},
                                     {0xFEFF, 0xFEFF}});
  return kSpaces;
}
CodepointSet Single(uint32_t codepoint) { return CodepointSet({{codepoint, codepoint}}); }
CodepointSet Not(const CodepointSet& set) { return CodepointSet::All().Without(set); }

// \d and its siblings; nullopt for other letters.
std::optional<CodepointSet> ClassOf(char letter) {
  switch (letter) {
    case 'd':
      return Digits();
    case 'D':
      return Not(Digits());
    case 'w':
      return Words();
    case 'W':
      return Not(Words());
    case 's':
      return Spaces();
    case 'S':
      return Not(Spaces());
    default:
      return std::nullopt;
  }
}

int WeightOf(const PatternNode& node) {
  if (node.kind == Kind::kSet) return node.set.size() > 1000 ? 16 : 1;
  int weight = 0;
  for (const PatternNode& part : node.parts) weight += WeightOf(part);
  if (node.kind != Kind::kRepeat) return weight;
  return weight * std::max({node.min, node.max, 1});
}

// A recursive descent over the text. The first error ends it.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  absl::StatusOr<Pattern> Parse() {
    Pattern pattern;
    do {
      Pattern::Alternative& alternative = pattern.alternatives.emplace_back();
      alternative.at_begin = Take('^');
      ASSIGN_OR_RETURN(alternative.node, Sequence(0));
      alternative.at_end = Take('$');
    } while (Take('|'));
    if (!AtEnd())
      return Fault(Peek() == ')' ? "closes a group that is not open"
                                 : "stands where no anchor may");
    int weight = 0;
    for (const auto& alternative : pattern.alternatives) weight += WeightOf(alternative.node);
    if (weight > Pattern::kMaxWeight) {
      return InvalidArgument("weighs {} with its repetitions written out; the limit is {}", weight,
                             Pattern::kMaxWeight);
    }
    return pattern;
  }

 private:
  bool AtEnd() const { return at_ == text_.size(); }
  char Peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool Take(char wanted) {
    if (AtEnd() || Peek() != wanted) return false;
    ++at_;
    return true;
  }
  bool Take(std::string_view wanted) {
    if (text_.substr(at_, wanted.size()) != wanted) return false;
    at_ += wanted.size();
    return true;
  }
  absl::Status Fault(std::string_view what) const {
    return InvalidArgument("at byte {}: `{}` {}", at_,
                           text_.substr(at_, 1) < "\x80" ? text_.substr(at_, 1) : "?", what);
  }

  absl::StatusOr<PatternNode> Choice(int depth) {
    PatternNode choice{.kind = Kind::kChoice};
    do {
      ASSIGN_OR_RETURN(PatternNode part, Sequence(depth));
      choice.parts.push_back(std::move(part));
    } while (Take('|'));
    return choice;
  }

  absl::StatusOr<PatternNode> Sequence(int depth) {
    PatternNode sequence{.kind = Kind::kSequence};
    while (!AtEnd() && std::string_view("|)$").find(Peek()) == std::string_view::npos) {
      ASSIGN_OR_RETURN(PatternNode part, Atom(depth));
      ASSIGN_OR_RETURN(part, Repeated(std::move(part)));
      sequence.parts.push_back(std::move(part));
    }
    return sequence;
  }

  absl::StatusOr<PatternNode> Atom(int depth) {
    if (Take('(')) return Group(depth);
    PatternNode set{.kind = Kind::kSet};
    if (Take('[')) {
      ASSIGN_OR_RETURN(set.set, Class());
    } else if (Take('.')) {
      set.set = Not(CodepointSet({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}));
    } else if (Take('\\')) {
      ASSIGN_OR_RETURN(set.set, Escape());
    } else if (std::string_view("*+?{}]^").find(Peek()) != std::string_view::npos) {
      return Fault("must be written with a backslash here");
    } else {
      ASSIGN_OR_RETURN(const uint32_t codepoint, Codepoint());
      set.set = Single(codepoint);
    }
    if (set.set.empty()) return Fault("follows a class that no character is in");
    return set;
  }

  absl::StatusOr<PatternNode> Group(int depth) {
    if (depth == Pattern::kMaxDepth)
      return InvalidArgument("has groups nested deeper than {}, the limit", Pattern::kMaxDepth);
    if (Take('?') && !Take(':')) {
      const bool named = Take('<') && Peek() != '=' && Peek() != '!';
      if (!named) return Fault("begins a look-around or a flag, which a grammar cannot express");
      const size_t end = text_.find('>', at_);
      if (end == std::string_view::npos) return Fault("begins a name without an end");
      at_ = end + 1;
    }
    ASSIGN_OR_RETURN(PatternNode inside, Choice(depth + 1));
    if (!Take(')'))
      return Fault(Peek() == '$' ? "is an anchor inside a group, which is not supported"
                                 : "is missing a `)`");
    return inside;
  }

  absl::StatusOr<PatternNode> Repeated(PatternNode part) {
    PatternNode repeat{.kind = Kind::kRepeat};
    if (Take('*')) {
      repeat.max = -1;
    } else if (Take('+')) {
      repeat.min = 1;
      repeat.max = -1;
    } else if (Take('?')) {
      repeat.max = 1;
    } else if (Take('{')) {
      RETURN_IF_ERROR(Counts(repeat));
    } else {
      return part;
    }
    Take('?');  // A lazy repetition matches the same texts.
    repeat.parts.push_back(std::move(part));
    return repeat;
  }

  absl::Status Counts(PatternNode& repeat) {
    ASSIGN_OR_RETURN(repeat.min, Count());
    repeat.max = repeat.min;
    if (Take(',')) {
      repeat.max = -1;
      if (Peek() != '}') {
        ASSIGN_OR_RETURN(repeat.max, Count());
      }
    }
    if (!Take('}')) return Fault("is not the end of a repetition {m,n}");
    if (repeat.max >= 0 && repeat.max < repeat.min)
      return Fault("ends a repetition whose limits are reversed");
    return absl::OkStatus();
  }

  absl::StatusOr<int> Count() {
    if (Peek() < '0' || Peek() > '9') return Fault("is not a number of repetitions");
    int count = 0;
    while (Peek() >= '0' && Peek() <= '9') {
      count = count * 10 + (text_[at_++] - '0');
      if (count > Pattern::kMaxCount)
        return InvalidArgument("repeats more than {} times, the limit of a counted repetition",
                               Pattern::kMaxCount);
    }
    return count;
  }

  absl::StatusOr<CodepointSet> Class() {
    const bool negated = Take('^');
    CodepointSet set;
    while (!AtEnd() && Peek() != ']') {
      ASSIGN_OR_RETURN(const CodepointSet first, Member());
      const bool range = Peek() == '-' && Peek(1) != ']' && first.size() == 1;
      if (!range) {
        set = set.Union(first);
        continue;
      }
      ++at_;
      ASSIGN_OR_RETURN(const CodepointSet last, Member());
      const uint32_t from = first.ranges()[0].first, to = last.empty() ? 0 : last.ranges()[0].first;
      if (last.size() != 1 || to < from)
        return Fault("follows a range of characters without order");
      set = set.Union(CodepointSet({{from, to}}));
    }
    if (!Take(']')) return Fault("is missing a `]`");
    return negated ? Not(set) : set;
  }

  absl::StatusOr<CodepointSet> Member() {
    if (Take('\\')) return Escape();
    ASSIGN_OR_RETURN(const uint32_t codepoint, Codepoint());
    return Single(codepoint);
  }

  // Behind the backslash.
  absl::StatusOr<CodepointSet> Escape() {
    const char letter = Peek();
    if (const auto set = ClassOf(letter)) {
      ++at_;
      return *set;
    }
    static constexpr std::pair<char, char> kControls[] = {
        {'n', '\n'}, {'r', '\r'}, {'t', '\t'}, {'f', '\f'}, {'v', '\v'}};
    for (const auto& [name, value] : kControls) {
      if (Take(name)) return Single(static_cast<uint32_t>(value));
    }
    if (Take('x')) return Hex(2);
    if (Take('u')) return Hex(4);
    const bool named = (letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'z') ||
                       (letter >= 'A' && letter <= 'Z');
    if (AtEnd() || named) return Fault("behind a backslash is not supported");
    ASSIGN_OR_RETURN(const uint32_t codepoint, Codepoint());
    return Single(codepoint);
  }

  absl::StatusOr<CodepointSet> Hex(int digits) {
    uint32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const char c = Peek();
      const auto digit = std::string_view("0123456789abcdef")
                             .find(c >= 'A' && c <= 'F' ? static_cast<char>(c + 32) : c);
      if (AtEnd() || digit == std::string_view::npos) return Fault("is not a hexadecimal digit");
      value = value * 16 + static_cast<uint32_t>(digit);
      ++at_;
    }
    return Single(value);
  }

  absl::StatusOr<uint32_t> Codepoint() {
    if (AtEnd()) return Fault("ends the pattern where a character must follow");
    const Utf8Step step = DecodeUtf8(text_.substr(at_));
    if (step.kind != Utf8Step::Kind::kValid) return Fault("is not UTF-8");
    at_ += step.length;
    return step.code_point;
  }

  const std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

absl::StatusOr<Pattern> Pattern::Parse(std::string_view text) {
  if (text.size() > kMaxBytes)
    return InvalidArgument("has {} bytes; the limit is {}", text.size(), kMaxBytes);
  return Parser(text).Parse();
}

}  // namespace penstock
