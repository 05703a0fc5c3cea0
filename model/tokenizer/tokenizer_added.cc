#include "model/tokenizer/tokenizer_added.h"

#include <utf8proc.h>

#include <algorithm>

#include "base/utf8.h"
#include "model/tokenizer/tokenizer_json.h"

namespace penstock {
namespace {

constexpr size_t kMaxContentBytes = 1024;  // limits the work per position of a text

// Returns the code point that ends before `at`, which must not be 0.
char32_t CodePointBefore(std::string_view text, size_t at) {
  size_t begin = at - 1;
  while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
  return DecodeUtf8(text.substr(begin)).code_point;
}

// The class \w: letters, marks, decimal digits, connectors and joiners.
bool IsWord(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return c == 0x200C || c == 0x200D;
  }
}

bool IsSingleWord(std::string_view text, const TokenTrie::Match& match) {
  if (match.begin > 0 && IsWord(CodePointBefore(text, match.begin))) return false;
  return match.end == text.size() || !IsWord(DecodeUtf8(text.substr(match.end)).code_point);
}

size_t SpaceBegin(std::string_view text, size_t at, size_t limit) {
  while (at > limit && IsUnicodeSpace(CodePointBefore(text, at))) {
    do {
      --at;
    } while ((static_cast<uint8_t>(text[at]) & 0xC0) == 0x80);
  }
  return at;
}

size_t SpaceEnd(std::string_view text, size_t at) {
  while (at < text.size()) {
    const Utf8Step step = DecodeUtf8(text.substr(at));
    if (!IsUnicodeSpace(step.code_point)) break;
    at += step.length;
  }
  return at;
}

absl::StatusOr<AddedToken> ParseToken(const JsonField& field, const Vocabulary& vocabulary) {
  AddedToken token;
  ASSIGN_OR_RETURN(token.id, field["id"].Index(kMaxTokenId));
  ASSIGN_OR_RETURN(token.content, field["content"].String());
  ASSIGN_OR_RETURN(token.single_word, field["single_word"].BoolOr(false));
  ASSIGN_OR_RETURN(token.lstrip, field["lstrip"].BoolOr(false));
  ASSIGN_OR_RETURN(token.rstrip, field["rstrip"].BoolOr(false));
  ASSIGN_OR_RETURN(token.special, field["special"].BoolOr(false));
  ASSIGN_OR_RETURN(token.normalized, field["normalized"].BoolOr(!token.special));
  if (token.content.size() > kMaxContentBytes) {
    return InvalidArgument("{}.content has {} bytes, the limit is {}", field.path(),
                           token.content.size(), kMaxContentBytes);
  }
  const std::optional<uint32_t> known = vocabulary.Find(token.content);
  if (known && *known != token.id) {
    return InvalidArgument("{}.id is {}, but model.vocab has {} for {}", field.path(), token.id,
                           *known, token.content);
  }
  return token;
}

}  // namespace

void TokenTrie::Add(std::string_view text, size_t token) {
  if (text.empty()) return;
  uint32_t node = 0;
  for (char c : text) {
    const uint64_t edge = (static_cast<uint64_t>(node) << 8) | static_cast<uint8_t>(c);
    const auto [child, added] = children_.emplace(edge, static_cast<uint32_t>(nodes_.size()));
    if (added) nodes_.emplace_back();
    node = child->second;
  }
  if (!nodes_[node]) nodes_[node] = token;
}

std::optional<TokenTrie::Match> TokenTrie::Find(std::string_view text, size_t from) const {
  if (empty()) return std::nullopt;
  for (size_t begin = from; begin < text.size(); ++begin) {
    std::optional<Match> longest;
    uint32_t node = 0;
    for (size_t at = begin; at < text.size(); ++at) {
      const uint64_t edge = (static_cast<uint64_t>(node) << 8) | static_cast<uint8_t>(text[at]);
      const auto child = children_.find(edge);
      if (child == children_.end()) break;
      node = child->second;
      if (nodes_[node]) longest = Match{begin, at + 1, *nodes_[node]};
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

absl::StatusOr<AddedTokens> AddedTokens::Parse(const JsonField& field, const Vocabulary& vocabulary,
                                               const Normalizer& normalizer) {
  AddedTokens added;
  if (!field.present()) return added;
  RETURN_IF_ERROR(field.ExpectArray());
  for (size_t i = 0; i < field.size(); ++i) {
    ASSIGN_OR_RETURN(AddedToken token, ParseToken(field[i], vocabulary));
    if (token.content.empty()) continue;
    const size_t index = added.tokens_.size();
    if (token.normalized) {
      ASSIGN_OR_RETURN(const std::string content, normalizer.Apply(token.content));
      added.normalized_.Add(content, index);
    } else {
      added.raw_.Add(token.content, index);
    }
    added.tokens_.push_back(std::move(token));
  }
  return added;
}

std::vector<AddedSplit> AddedTokens::SplitRaw(std::string_view text, bool parse_special) const {
  return Split(raw_, text, parse_special);
}

std::vector<AddedSplit> AddedTokens::SplitNormalized(std::string_view text,
                                                     bool parse_special) const {
  return Split(normalized_, text, parse_special);
}

std::vector<AddedSplit> AddedTokens::Split(const TokenTrie& trie, std::string_view text,
                                           bool parse_special) const {
  std::vector<AddedSplit> splits;
  size_t done = 0;
  size_t from = 0;
  while (const std::optional<TokenTrie::Match> match = trie.Find(text, from)) {
    from = match->end;
    const AddedToken& token = tokens_[match->token];
    if (token.special && !parse_special) continue;
    if (token.single_word && !IsSingleWord(text, *match)) continue;
    const size_t begin = token.lstrip ? SpaceBegin(text, match->begin, done) : match->begin;
    if (done < begin) splits.push_back({done, begin, std::nullopt});
    const size_t end = token.rstrip ? SpaceEnd(text, match->end) : match->end;
    splits.push_back({begin, end, token.id});
    done = end;
  }
  if (done < text.size()) splits.push_back({done, text.size(), std::nullopt});
  return splits;
}

}  // namespace penstock
