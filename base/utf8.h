#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

// UTF-8 as table 3-7 of the Unicode standard has it: no surrogates, no overlong forms.

namespace penstock {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

struct Utf8Step {
  enum class Kind { kValid, kInvalid, kIncomplete };
  Kind kind = Kind::kValid;
  // Bytes taken: of the code point, or of the maximal part that one U+FFFD stands for. kIncomplete:
  // all that is there, and more bytes could still complete it.
  size_t length = 0;
  char32_t code_point = 0;  // kValid only
};

// Reads one code point at the beginning of `text`, which is not empty.
Utf8Step DecodeUtf8(std::string_view text);

// The offset of the first byte that is not UTF-8, or npos.
size_t FirstInvalidUtf8(std::string_view text);

void AppendUtf8(char32_t code_point, std::string& text);

// Bytes of the code point that starts with `lead`, in text known to be valid.
inline size_t Utf8Length(char lead) {
  const auto byte = static_cast<uint8_t>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// As White_Space of the Unicode standard.
bool IsUnicodeSpace(char32_t code_point);

}  // namespace penstock
