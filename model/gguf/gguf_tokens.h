#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/gguf/file/gguf_file.h"

namespace penstock {

// The vocabulary of a GGUF file, checked: spellings are valid UTF-8 of at most 1,024 bytes and
// unique, and every special id names one. Views into the file.
struct GgufTokens {
  // tokenizer.ggml.token_type.
  enum class Kind { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

  std::vector<std::string_view> spellings;  // indexed by id; empty: the id has no token
  std::vector<Kind> kinds;                  // indexed by id
  std::optional<uint32_t> bos, eos, unk, pad;
  // Control tokens and others that the metadata name, which texts cannot spell.
  std::vector<bool> special;  // indexed by id
  // As in Phi-3: spaces behind special tokens belong to these, but for <unk>, <s> and
  // <|endoftext|>.
  bool strips_right = false;

  bool StripsRight(size_t id) const;
  bool InVocabulary(size_t id) const;  // of the model that merges, not an added token
};

absl::StatusOr<GgufTokens> ReadGgufTokens(const GgufFile& file);

// The value of tokenizer.json's added_tokens: special and user-defined tokens, and unknown ones.
nlohmann::json AddedTokensOf(const GgufTokens& tokens);
// The value of tokenizer.json's model.vocab.
nlohmann::json VocabularyOf(const GgufTokens& tokens);

}  // namespace penstock
