#include "router/api/json_text.h"

namespace penstock {
namespace {

// Reads valid JSON from left to right.
class Scanner {
 public:
  explicit Scanner(std::string_view json) : json_(json) {}

  std::optional<std::string_view> Find(std::span<const std::string_view> keys) {
    for (const std::string_view key : keys) {
      if (!EnterObjectAt(key)) return std::nullopt;
    }
    return Value();
  }

  std::vector<std::string_view> Elements() {
    std::vector<std::string_view> elements;
    SkipSpace();
    if (Peek() != '[') return elements;
    ++at_;
    SkipSpace();
    while (at_ < json_.size() && Peek() != ']') {
      elements.push_back(Value());
      SkipSpace();
      if (Peek() == ',') ++at_;
      SkipSpace();
    }
    return elements;
  }

 private:
  char Peek() const { return at_ < json_.size() ? json_[at_] : '\0'; }

  void SkipSpace() {
    while (at_ < json_.size() &&
           std::string_view(" \t\n\r").find(json_[at_]) != std::string_view::npos)
      ++at_;
  }

  // Stands before the value of `key` of the object that begins here.
  bool EnterObjectAt(std::string_view key) {
    SkipSpace();
    if (Peek() != '{') return false;
    ++at_;
    SkipSpace();
    while (Peek() == '"') {
      const std::string_view name = Value();
      SkipSpace();
      if (Peek() == ':') ++at_;
      SkipSpace();
      if (name.substr(1, name.size() - 2) == key) return true;
      Value();
      SkipSpace();
      if (Peek() == ',') ++at_;
      SkipSpace();
    }
    return false;
  }

  // Reads the value that begins here.
  std::string_view Value() {
    const size_t begin = at_;
    size_t depth = 0;
    do {
      const char c = Peek();
      if (c == '"') {
        SkipString();
      } else if (c == '{' || c == '[') {
        ++depth;
        ++at_;
      } else if (c == '}' || c == ']') {
        if (depth == 0) break;
        --depth;
        ++at_;
      } else if (depth > 0) {
        ++at_;
      } else {
        while (at_ < json_.size() &&
               std::string_view(",]} \t\n\r").find(json_[at_]) == std::string_view::npos)
          ++at_;
      }
    } while (depth > 0 && at_ < json_.size());
    return json_.substr(begin, at_ - begin);
  }

  void SkipString() {
    for (++at_; at_ < json_.size() && json_[at_] != '"'; ++at_) {
      if (json_[at_] == '\\') ++at_;
    }
    at_ = at_ < json_.size() ? at_ + 1 : json_.size();
  }

  const std::string_view json_;
  size_t at_ = 0;
};

}  // namespace

std::optional<std::string_view> JsonTextAt(std::string_view json,
                                           std::span<const std::string_view> keys) {
  return Scanner(json).Find(keys);
}

std::vector<std::string_view> JsonTextsIn(std::string_view list) {
  return Scanner(list).Elements();
}

}  // namespace penstock
