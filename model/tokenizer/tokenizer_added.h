#pragma once

#include <absl/container/flat_hash_map.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/tokenizer/bpe_vocabulary.h"
#include "model/tokenizer/tokenizer_normalizer.h"

namespace penstock {

class JsonField;

// An entry of added_tokens, with tokenizer.json's names.
struct AddedToken {
  uint32_t id = 0;
  std::string content;
  bool single_word = false;  // matches only if no word character is adjacent
  bool lstrip = false;       // the match includes the white space before it
  bool rstrip = false;       // the match includes the white space after it
  bool normalized = false;   // searched for in normalized text
  bool special = false;
};

// A part of a text: an added token, or the text between two of them.
struct AddedSplit {
  size_t begin = 0;
  size_t end = 0;
  std::optional<uint32_t> id;
};

// Finds strings by leftmost-longest match in a trie. Any thread may search it once it is filled.
class TokenTrie {
 public:
  TokenTrie() : nodes_(1) {}
  void Add(std::string_view text, size_t token);
  bool empty() const { return nodes_.size() == 1; }

  struct Match {
    size_t begin = 0;
    size_t end = 0;
    size_t token = 0;
  };
  // Returns the first match at or after `from`.
  std::optional<Match> Find(std::string_view text, size_t from) const;

 private:
  std::vector<std::optional<size_t>> nodes_;          // the token that ends at the node
  absl::flat_hash_map<uint64_t, uint32_t> children_;  // keyed by (node << 8 | byte)
};

// "added_tokens" of a tokenizer.json: tokens that are matched in the text before the model encodes
// it. Any thread may split text.
class AddedTokens {
 public:
  static absl::StatusOr<AddedTokens> Parse(const JsonField& field, const Vocabulary& vocabulary,
                                           const Normalizer& normalizer);

  const std::vector<AddedToken>& tokens() const { return tokens_; }

  // Splits raw text at the added tokens that are matched in raw text.
  std::vector<AddedSplit> SplitRaw(std::string_view text, bool parse_special) const;
  // Splits normalized text at the added tokens with `normalized`.
  std::vector<AddedSplit> SplitNormalized(std::string_view text, bool parse_special) const;

 private:
  std::vector<AddedSplit> Split(const TokenTrie& trie, std::string_view text,
                                bool parse_special) const;

  std::vector<AddedToken> tokens_;
  TokenTrie raw_;
  TokenTrie normalized_;
};

}  // namespace penstock
