#include "model/tokenizer/bpe_vocabulary.h"

#include <algorithm>
#include <array>

#include "base/utf8.h"
#include "model/tokenizer/tokenizer_json.h"

namespace penstock {
namespace {

// GPT-2's alphabet (bytes_to_unicode of its encoder.py): printable Latin-1 bytes stand for
// themselves; the other 68 bytes stand, in order, for U+0100 onwards.
bool IsPrintableLatin1(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr size_t kAlphabetEnd = 0x144;

std::array<char32_t, 256> MakeCodePointOfByte() {
  std::array<char32_t, 256> code_points;
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    code_points[byte] = IsPrintableLatin1(byte) ? static_cast<char32_t>(byte) : next++;
  }
  return code_points;
}

const std::array<char32_t, 256>& CodePointOfByte() {
  static const std::array<char32_t, 256> kCodePointOf = MakeCodePointOfByte();
  return kCodePointOf;
}

std::array<int16_t, kAlphabetEnd> MakeByteOfCodePoint() {
  std::array<int16_t, kAlphabetEnd> bytes;
  bytes.fill(-1);
  for (int byte = 0; byte < 256; ++byte) {
    bytes[CodePointOfByte()[byte]] = static_cast<int16_t>(byte);
  }
  return bytes;
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

Vocabulary::Vocabulary(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {
  ids_.reserve(tokens_.size());
  for (uint32_t id = 0; id < tokens_.size(); ++id) {
    if (!tokens_[id].empty()) ids_.emplace(tokens_[id], id);
  }
}

absl::StatusOr<Vocabulary> Vocabulary::Parse(const JsonField& field) {
  RETURN_IF_ERROR(field.ExpectObject());
  uint32_t highest = 0;
  for (const auto& [token, id] : field.json().items()) {
    ASSIGN_OR_RETURN(const uint32_t value, field[token].Index(kMaxTokenId));
    highest = std::max(highest, value);
  }
  std::vector<std::string> tokens(field.size() == 0 ? 0 : highest + 1);
  for (const auto& [token, id] : field.json().items()) {
    std::string& slot = tokens[id.get<uint32_t>()];
    if (!slot.empty()) {
      return InvalidArgument("{} has id {} twice, for {} and {}", field.path(), id.get<uint32_t>(),
                             slot, token);
    }
    slot = token;
  }
  return Vocabulary(std::move(tokens));
}

std::optional<uint32_t> Vocabulary::Find(std::string_view token) const {
  const auto found = ids_.find(token);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

std::optional<std::string> BytesOfSpelling(std::string_view spelling) {
  static const std::array<int16_t, kAlphabetEnd> kByteOf = MakeByteOfCodePoint();
  std::string bytes;
  while (!spelling.empty()) {
    const Utf8Step step = DecodeUtf8(spelling);
    if (step.code_point >= kAlphabetEnd || kByteOf[step.code_point] < 0) return std::nullopt;
    bytes += static_cast<char>(kByteOf[step.code_point]);
    spelling.remove_prefix(step.length);
  }
  return bytes;
}

void AppendSpelling(std::string_view bytes, std::string& out) {
  for (const char byte : bytes) AppendUtf8(CodePointOfByte()[static_cast<uint8_t>(byte)], out);
}

std::optional<uint8_t> ByteOfFallback(std::string_view spelling) {
  if (spelling.size() != 6 || !spelling.starts_with("<0x") || spelling.back() != '>') {
    return std::nullopt;
  }
  const int high = HexDigit(spelling[3]);
  const int low = HexDigit(spelling[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return static_cast<uint8_t>(high * 16 + low);
}

}  // namespace penstock
