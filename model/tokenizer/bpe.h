#pragma once

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/tokenizer/bpe_vocabulary.h"

namespace penstock {

class JsonField;

// Byte-pair encoding (Sennrich, Haddow and Birch, arXiv 1508.07909) of one piece of text: splits
// the piece into symbols, then merges adjacent pairs by rank, lowest first and leftmost among
// equals. Any thread may encode. Takes O(n log n) time for a piece of n bytes.
class Bpe {
 public:
  // Parses "model" of a tokenizer.json. With `byte_level` the symbols are bytes, spelled in GPT-2's
  // alphabet, otherwise code points. Returns INVALID_ARGUMENT with the field's path.
  static absl::StatusOr<Bpe> Parse(const JsonField& model, bool byte_level);

  // Appends the ids of `piece` to `ids`.
  void Encode(std::string_view piece, std::vector<uint32_t>& ids) const;

  const Vocabulary& spellings() const { return spellings_; }
  std::optional<uint32_t> unk_id() const { return unk_id_; }

 private:
  struct Merge {
    uint32_t rank = 0;
    uint32_t id = 0;
  };
  struct Symbol {
    uint32_t id = 0;
    int32_t previous = -1;  // index, or -1
    int32_t next = -1;
    bool gone = false;  // merged into its left neighbour
  };
  // The encoding of a vocabulary entry that is a whole piece: not computed yet, the entry itself,
  // or other tokens.
  enum class Whole : uint8_t { kUnknown, kItself, kOther };

  Bpe() = default;
  absl::Status ParseFlags(const JsonField& model);
  absl::Status ParseMerges(const JsonField& merges);
  absl::StatusOr<std::pair<std::string, std::string>> ParseMerge(const JsonField& merge) const;
  void FillBytes();
  void AddJoint(std::string_view left, std::string_view right);

  const Vocabulary& keys() const { return byte_level_ ? byte_keys_ : spellings_; }
  bool CanCut(std::string_view left, std::string_view right) const;  // two adjacent code points
  void EncodeUncut(std::string_view piece, std::vector<uint32_t>& ids) const;
  void MergePiece(std::string_view piece, std::vector<uint32_t>& ids) const;
  void AppendSymbols(std::string_view piece, std::vector<uint32_t>& symbols) const;
  bool AppendFallback(std::string_view symbol, std::vector<uint32_t>& symbols) const;
  const Merge* FindMerge(uint32_t left, uint32_t right) const;
  void MergeShort(std::vector<uint32_t>& symbols) const;
  void MergeLong(std::vector<uint32_t>& symbols) const;

  Vocabulary spellings_;  // as the file spells them
  Vocabulary byte_keys_;  // byte level: the bytes that the spellings stand for
  absl::flat_hash_map<uint64_t, Merge> merges_;  // keyed by (left id << 32 | right id)
  std::array<int32_t, 256> fallback_;            // id of "<0xNN>", or -1
  std::optional<uint32_t> unk_id_;
  bool byte_level_ = false;
  bool byte_fallback_ = false;
  bool fuse_unk_ = false;
  bool ignore_merges_ = false;

  // Code point level: pairs of code points that are adjacent inside some merged token (`joints_`).
  // The text can be split between any other two known code points without changing the result, so a
  // whole SentencePiece text splits into words.
  bool can_cut_ = false;
  // Every byte has a token, so no code point is unknown. An unknown code point is fused or dropped
  // together with its neighbours, so the text must not be split next to it.
  bool all_known_ = false;
  absl::flat_hash_set<uint64_t> joints_;

  // Cache, by id, filled during encoding: most words of a text are one token, and the cache saves
  // their merges.
  std::unique_ptr<std::atomic<Whole>[]> whole_;
};

}  // namespace penstock
