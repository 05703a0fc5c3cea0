#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

// UTF-8 as table 3-7 of the Unicode Standard defines it: no surrogates, no overlong forms.

namespace penstock {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

// The result of decoding one code point.
struct Utf8Step {
  enum class Kind { kValid, kInvalid, kIncomplete };
  Kind kind = Kind::kValid;
  // Bytes consumed: those of the code point, or those of the maximal invalid subpart that one
  // U+FFFD replaces. For kIncomplete: all remaining bytes, which further bytes could complete.
  size_t length = 0;
  char32_t code_point = 0;  // set for kValid only
};

// Decodes one code point at the beginning of `text`, which must not be empty.
Utf8Step DecodeUtf8(std::string_view text);

// Returns the offset of the first byte that is not valid UTF-8, or npos.
size_t FirstInvalidUtf8(std::string_view text);

void AppendUtf8(char32_t code_point, std::string& text);

// Returns the length in bytes of the code point that starts with `lead`, in valid UTF-8.
inline size_t Utf8Length(char lead) {
  const auto byte = static_cast<uint8_t>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// True for characters with the Unicode property White_Space.
bool IsUnicodeSpace(char32_t code_point);

}  // namespace penstock
