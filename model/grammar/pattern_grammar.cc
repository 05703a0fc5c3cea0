#include "model/grammar/pattern_grammar.h"

#include <array>
#include <utility>

#include "base/utf8.h"

namespace penstock {
namespace {

// Characters of a JSON string that need an escape, and the letter of their short one. The other
// control characters have none, and no string of ours has them.
constexpr std::array<std::pair<char, std::string_view>, 7> kEscapes = {
    {{'"', "\""}, {'\\', "\\"}, {'\b', "b"}, {'\f', "f"}, {'\n', "n"}, {'\r', "r"}, {'\t', "t"}}};

const CodepointSet& Escaped() {
  static const CodepointSet kEscaped({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}});
  return kEscaped;
}

std::string Unit(uint32_t codepoint) { return fmt::format("\\U{:08X}", codepoint); }

std::string Range(const CodepointSet& set) {
  std::string out = "[";
  for (const auto& [first, last] : set.ranges()) {
    out += Unit(first);
    if (last > first) out += "-" + Unit(last);
  }
  return out + "]";
}

std::string JsonSet(const CodepointSet& set) {
  std::string out;
  const CodepointSet plain = set.Without(Escaped());
  if (!plain.empty()) out = Range(plain);
  for (const auto& [character, letter] : kEscapes) {
    if (!set.contains(static_cast<unsigned char>(character))) continue;
    if (!out.empty()) out += " | ";
    out += Literal(fmt::format("\\{}", letter));
  }
  return "(" + out + ")";
}

std::string Expression(const PatternNode& node, bool json) {
  switch (node.kind) {
    case PatternNode::Kind::kSet:
      return json ? JsonSet(node.set) : Range(node.set);
    case PatternNode::Kind::kSequence: {
      std::string out = "(\"\"";
      for (const PatternNode& part : node.parts) out += " " + Expression(part, json);
      return out + ")";
    }
    case PatternNode::Kind::kChoice: {
      std::string out;
      for (const PatternNode& part : node.parts) {
        out += (out.empty() ? "(" : " | ") + Expression(part, json);
      }
      return out + ")";
    }
    case PatternNode::Kind::kRepeat:
      break;
  }
  const std::string part = Expression(node.parts[0], json);
  if (node.max < 0) {
    if (node.min == 0) return part + "*";
    return node.min == 1 ? part + "+" : fmt::format("{}{{{},}}", part, node.min);
  }
  return fmt::format("{}{{{},{}}}", part, node.min, node.max);
}

std::string Alternatives(const Pattern& pattern, bool json, const std::string& around) {
  std::string out;
  for (const Pattern::Alternative& alternative : pattern.alternatives) {
    out += out.empty() ? "(" : " | ";
    if (!alternative.at_begin) out += around;
    out += Expression(alternative.node, json);
    if (!alternative.at_end) out += around;
  }
  return out + ")";
}

}  // namespace

std::string PlainExpression(const Pattern& pattern) { return Alternatives(pattern, false, ""); }

std::string JsonExpression(const Pattern& pattern) {
  return Alternatives(pattern, true, fmt::format(" ({})* ", JsonCharacter(true, false)));
}

std::string JsonCharacter(bool escapes, bool units) {
  std::string out = Range(CodepointSet::All().Without(Escaped()));
  if (escapes) out += R"( | "\\" ["\\/bfnrt])";
  if (units) out += R"( | "\\u" [0-9A-Fa-f] [0-9A-Fa-f] [0-9A-Fa-f] [0-9A-Fa-f])";
  return out;
}

std::string Literal(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const Utf8Step step = DecodeUtf8(text);
    const bool word = step.code_point < 0x80 &&
                      (isalnum(static_cast<int>(step.code_point)) != 0 || step.code_point == ' ');
    out += word ? std::string(text.substr(0, 1)) : Unit(step.code_point);
    text.remove_prefix(step.length);
  }
  return out + "\"";
}

}  // namespace penstock
