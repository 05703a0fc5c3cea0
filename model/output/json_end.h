#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

namespace penstock {

// Finds the end of one JSON object in streamed text without keeping the text. One thread.
class JsonObjectEnd {
 public:
  // Returns how many bytes of `text` belong to the object. The first byte must be '{'; without it
  // nothing belongs, and ended() is true.
  size_t Feed(std::string_view text) {
    for (size_t i = 0; i < text.size(); ++i) {
      if (ended_ || !Take(text[i])) return i;
    }
    return text.size();
  }
  bool ended() const { return ended_; }

 private:
  bool Take(char c) {
    if (in_string_) {
      in_string_ = escaped_ || c != '"';
      escaped_ = !escaped_ && c == '\\';
      return true;
    }
    if (c == '"') in_string_ = true;
    if (c == '{' || c == '[') ++depth_;
    if (c == '}' || c == ']') --depth_;
    const bool begins = std::exchange(begun_, true) || c == '{';
    ended_ = !begins || depth_ == 0;
    return begins;
  }

  uint32_t depth_ = 0;
  bool begun_ = false;
  bool in_string_ = false;
  bool escaped_ = false;
  bool ended_ = false;
};

}  // namespace penstock
