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

// Bounds the id table: ids are dense in practice, and without the bound a malformed file could make
// it allocate gigabytes.
inline constexpr uint32_t kMaxTokenId = (1u << 21) - 1;

// Maps token strings to ids and back. Any thread may read it once it is filled.
class Vocabulary {
 public:
  Vocabulary() = default;
  explicit Vocabulary(std::vector<std::string> tokens);
  Vocabulary(Vocabulary&&) = default;
  Vocabulary& operator=(Vocabulary&&) = default;

  // Parses "vocab" of a tokenizer.json, an object from token to id.
  static absl::StatusOr<Vocabulary> Parse(const JsonField& field);

  std::optional<uint32_t> Find(std::string_view token) const;
  uint32_t size() const { return static_cast<uint32_t>(tokens_.size()); }  // highest id + 1
  const std::string& token(uint32_t id) const { return tokens_[id]; }      // empty for an unused id

 private:
  struct Hash {
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  // The keys are views into tokens_, whose buffer moves with the object.
  std::vector<std::string> tokens_;
  absl::flat_hash_map<std::string_view, uint32_t, Hash> ids_;
};

// Decodes GPT-2's alphabet, in which each byte is spelled as a printable code point. Returns the
// bytes of `spelling`, or nothing if a code point stands for no byte.
std::optional<std::string> BytesOfSpelling(std::string_view spelling);

// The inverse of BytesOfSpelling: appends the spelling of `bytes` to `out`.
void AppendSpelling(std::string_view bytes, std::string& out);

// Returns the byte of "<0xE2>", SentencePiece's spelling for bytes without a token of their own.
std::optional<uint8_t> ByteOfFallback(std::string_view spelling);

}  // namespace penstock
