#include "model/grammar/grammar_join.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <functional>

#include "base/check.h"
#include "base/status.h"

namespace penstock {
namespace {

constexpr char kMark = '\x01';  // no grammar has it outside of literals, nor unescaped in them
constexpr int kMaxRounds = 48;  // a chain of rules that needs more stays as it is

bool IsNameStart(char c) { return isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool IsNameChar(char c) {
  return isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.';
}

// Calls `name` for each name outside of literals and classes, and `other` for all other text.
void ScanGrammar(std::string_view text, const std::function<void(std::string_view)>& name,
                 const std::function<void(std::string_view)>& other) {
  for (size_t at = 0; at < text.size();) {
    size_t end = at + 1;
    if (IsNameStart(text[at])) {
      while (end < text.size() && IsNameChar(text[end])) ++end;
      name(text.substr(at, end - at));
    } else {
      const char close = text[at] == '"' ? '"' : text[at] == '[' ? ']' : '\0';
      if (close != '\0') {
        while (end < text.size() && text[end] != close) end += text[end] == '\\' ? 2 : 1;
        end = std::min(end + 1, text.size());
      }
      other(text.substr(at, end - at));
    }
    at = end;
  }
}

struct NamedText {
  std::string name;
  std::string text;  // behind the name
};

// A rule begins with a line that has a name, maybe attributes, and "::=".
std::vector<NamedText> SplitRules(std::string_view grammar) {
  std::vector<NamedText> rules;
  while (!grammar.empty()) {
    const size_t end = std::min(grammar.find('\n'), grammar.size());
    const std::string_view line = grammar.substr(0, end);
    grammar.remove_prefix(std::min(end + 1, grammar.size()));
    size_t name = 0;
    if (!line.empty() && IsNameStart(line[0])) {
      while (name < line.size() && IsNameChar(line[name])) ++name;
    }
    const std::string_view behind = line.substr(name);
    const bool begins = name > 0 && (behind.starts_with(" ::=") || behind.starts_with("["));
    if (begins) {
      rules.push_back({std::string(line.substr(0, name)), std::string(behind)});
    } else if (!rules.empty()) {
      rules.back().text += "\n" + std::string(line);
    }
  }
  return rules;
}

uint32_t NumberOf(std::string_view name) {
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(name.data() + 1, name.data() + name.size(), number);
  PENSTOCK_CHECK(error == std::errc());
  return number;
}

std::string NameOfRule(uint32_t number) { return fmt::format("j{}", number); }

}  // namespace

std::string GrammarJoin::Add(std::string_view grammar) {
  const std::vector<NamedText> texts = SplitRules(grammar);
  std::map<std::string, uint32_t, std::less<>> numbers;
  for (const NamedText& text : texts) {
    numbers.emplace(text.name, static_cast<uint32_t>(rules_.size() + numbers.size()));
  }
  for (const NamedText& text : texts) {
    Rule& rule = rules_.emplace_back();
    ScanGrammar(
        text.text,
        [&](std::string_view name) {
          const auto found = numbers.find(name);
          if (found == numbers.end()) {
            rule.shape += name;  // a macro or an argument
          } else {
            rule.shape += kMark;
            rule.uses.push_back(found->second);
          }
        },
        [&](std::string_view other) { rule.shape += other; });
  }
  const auto root = numbers.find("root");
  PENSTOCK_CHECK(root != numbers.end());
  return NameOfRule(root->second);
}

// The numbers of the reached rules, in the order in which they are found.
std::vector<uint32_t> GrammarJoin::Reach(const std::vector<std::string>& names) const {
  std::vector<bool> seen(rules_.size());
  std::vector<uint32_t> reached;
  const auto add = [&](uint32_t number) {
    if (seen[number]) return;
    seen[number] = true;
    reached.push_back(number);
  };
  for (const std::string& name : names) add(NumberOf(name));
  for (size_t i = 0; i < reached.size(); ++i) {
    for (const uint32_t used : rules_[reached[i]].uses) add(used);
  }
  return reached;
}

// The class of each reached rule; without an end in kMaxRounds, each rule has its own.
std::map<uint32_t, uint32_t> GrammarJoin::Classes(const std::vector<uint32_t>& reached) const {
  std::map<uint32_t, uint32_t> classes;
  std::map<std::string, uint32_t> shapes;
  for (const uint32_t number : reached) {
    const auto count = static_cast<uint32_t>(shapes.size());
    classes[number] = shapes.emplace(rules_[number].shape, count).first->second;
  }
  size_t before = shapes.size();
  for (int round = 0; round < kMaxRounds; ++round) {
    std::map<std::vector<uint32_t>, uint32_t> keys;
    std::map<uint32_t, uint32_t> next;
    for (const uint32_t number : reached) {
      std::vector<uint32_t> key = {classes[number]};
      for (const uint32_t used : rules_[number].uses) key.push_back(classes[used]);
      const auto count = static_cast<uint32_t>(keys.size());
      next[number] = keys.emplace(std::move(key), count).first->second;
    }
    classes = std::move(next);
    if (keys.size() == before) return classes;
    before = keys.size();
  }
  for (size_t i = 0; i < reached.size(); ++i) classes[reached[i]] = static_cast<uint32_t>(i);
  return classes;
}

std::string GrammarJoin::Rules(std::vector<std::string>& names) const {
  const std::vector<uint32_t> reached = Reach(names);
  std::map<uint32_t, uint32_t> classes = Classes(reached);
  for (std::string& name : names) name = NameOfRule(classes[NumberOf(name)]);
  std::string text;
  std::vector<bool> written(reached.size());
  for (const uint32_t number : reached) {
    if (written[classes[number]]) continue;
    written[classes[number]] = true;
    text += NameOfRule(classes[number]);
    size_t use = 0;
    for (const char c : rules_[number].shape) {
      if (c != kMark) {
        text += c;
      } else {
        text += NameOfRule(classes[rules_[number].uses[use++]]);
      }
    }
    text += '\n';
  }
  return text;
}

}  // namespace penstock
