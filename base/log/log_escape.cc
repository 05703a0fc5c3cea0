#include "base/log/log_escape.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace penstock {
namespace {

// Returns the length of the UTF-8 sequence at the beginning of `text`; 0 if it is invalid (RFC
// 3629: no overlong forms, no surrogates, nothing above U+10FFFF).
size_t SequenceLength(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto follows = [&](size_t i, unsigned min = 0x80, unsigned max = 0xbf) {
    return i < text.size() && byte(i) >= min && byte(i) <= max;
  };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first <= 0xdf) return follows(1) ? 2 : 0;
  if (first >= 0xe0 && first <= 0xef) {
    const unsigned min = first == 0xe0 ? 0xa0 : 0x80;
    const unsigned max = first == 0xed ? 0x9f : 0xbf;
    return follows(1, min, max) && follows(2) ? 3 : 0;
  }
  if (first >= 0xf0 && first <= 0xf4) {
    const unsigned min = first == 0xf0 ? 0x90 : 0x80;
    const unsigned max = first == 0xf4 ? 0x8f : 0xbf;
    return follows(1, min, max) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

// True for sequences that a terminal or a line reader may interpret: C0, DEL, C1, and Unicode's
// line and paragraph separators and directional overrides. `part` is one whole sequence.
bool IsControl(std::string_view part) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(part[i]); };
  if (part.size() == 1) return byte(0) < 0x20 || byte(0) == 0x7f;
  if (part.size() == 2) return byte(0) == 0xc2 && byte(1) < 0xa0;
  if (part.size() != 3 || byte(0) != 0xe2) return false;
  return (byte(1) == 0x80 && byte(2) >= 0xa8 && byte(2) <= 0xae) ||
         (byte(1) == 0x81 && byte(2) >= 0xa6 && byte(2) <= 0xa9);
}

uint32_t CodePoint(std::string_view part) {
  constexpr unsigned char kFirstBits[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
  uint32_t code = static_cast<unsigned char>(part[0]) & kFirstBits[part.size()];
  for (const char c : part.substr(1)) code = code << 6 | (static_cast<unsigned char>(c) & 0x3f);
  return code;
}

}  // namespace

void AppendEscaped(std::string_view text, LogFormat format, std::string& line) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = SequenceLength(text.substr(at));
    const std::string_view part = text.substr(at, std::max<size_t>(length, 1));
    at += part.size();
    if (length == 0) {
      if (format == LogFormat::kJson) {
        line += "\uFFFD";
      } else {
        fmt::format_to(std::back_inserter(line), "\\x{:02x}", static_cast<unsigned char>(part[0]));
      }
    } else if (part == "\"" || part == "\\") {
      line += '\\';
      line += part;
    } else if (part == "\n") {
      line += "\\n";
    } else if (IsControl(part)) {
      fmt::format_to(std::back_inserter(line), "\\u{:04x}", CodePoint(part));
    } else {
      line += part;
    }
  }
}

std::string Printable(std::string_view text) {
  std::string line;
  AppendEscaped(text, LogFormat::kText, line);
  return line;
}

}  // namespace penstock
