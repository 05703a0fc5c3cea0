#pragma once

#include <absl/container/flat_hash_map.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace penstock {

class JsonField;

// Ids are dense in practice; the bound keeps a malformed file from asking for gigabytes.
inline constexpr uint32_t kMaxTokenId = (1u << 21) - 1;

// Strings of tokens by id and back. Any thread once filled.
class Vocabulary {
 public:
  Vocabulary() = default;
  explicit Vocabulary(std::vector<std::string> tokens);
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

  // "vocab" of a tokenizer.json: an object from token to id.
  static absl::StatusOr<Vocabulary> Parse(const JsonField& field);

  std::optional<uint32_t> Find(std::string_view token) const;
  uint32_t size() const { return static_cast<uint32_t>(tokens_.size()); }  // the highest id + 1
  const std::string& token(uint32_t id) const { return tokens_[id]; }      // empty: no such id

 private:
  struct Hash {
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  // The keys are views into tokens_, whose buffer moves with the object.
  std::vector<std::string> tokens_;
  absl::flat_hash_map<std::string_view, uint32_t, Hash> ids_;
};

// GPT-2's alphabet: each byte has a printable code point that stands for it in the file.
// Bytes of `spelling`, or nothing when it has a character that stands for none.
std::optional<std::string> BytesOfSpelling(std::string_view spelling);

// The byte of "<0xE2>", SentencePiece's spelling of bytes without a token of their own.
std::optional<uint8_t> ByteOfFallback(std::string_view spelling);

}  // namespace penstock
