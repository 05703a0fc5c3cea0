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

struct AddedToken {
  uint32_t id = 0;
  std::string content;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // and after it
  bool normalized = false;   // looked for in normalized text
  bool special = false;
};

// A part of a text: one added token, or text between them.
struct AddedSplit {
  size_t begin = 0;
  size_t end = 0;
  std::optional<uint32_t> id;
};

// Finds strings by leftmost-longest match. Any thread once filled.
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
  // The first match at or after `from`.
  std::optional<Match> Find(std::string_view text, size_t from) const;

 private:
  std::vector<std::optional<size_t>> nodes_;          // the token that ends here
  absl::flat_hash_map<uint64_t, uint32_t> children_;  // by (node << 8 | byte)
};

// "added_tokens": tokens that are looked for in the text before the model sees it. Any thread.
class AddedTokens {
 public:
  static absl::StatusOr<AddedTokens> Parse(const JsonField& field, const Vocabulary& vocabulary,
                                           const Normalizer& normalizer);

  const std::vector<AddedToken>& tokens() const { return tokens_; }

  // Cuts raw text at the tokens that are looked for there.
  std::vector<AddedSplit> SplitRaw(std::string_view text, bool parse_special) const;
  // Likewise for normalized text and the tokens with `normalized`.
  std::vector<AddedSplit> SplitNormalized(std::string_view text, bool parse_special) const;

 private:
  std::vector<AddedSplit> Split(const TokenTrie& trie, std::string_view text,
                                bool parse_special) const;

  std::vector<AddedToken> tokens_;
  TokenTrie raw_;
  TokenTrie normalized_;
};

}  // namespace penstock
