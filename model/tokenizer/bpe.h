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

// Byte-pair encoding of one piece of text: its symbols, then merges by rank, lowest first and among
// equals the leftmost. Any thread; time n log n in the piece.
class Bpe {
 public:
  // "model" of a tokenizer.json. With `byte_level` the symbols are bytes (spelled in GPT-2's
  // alphabet), otherwise code points.
  static absl::StatusOr<Bpe> Parse(const JsonField& model, bool byte_level);

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
    bool gone = false;  // merged into the one before it
  };
  // What a vocabulary entry encodes to when it is a piece by itself.
  enum class Whole : uint8_t { kUnknown, kItself, kOther };

  Bpe() = default;
  absl::Status ParseFlags(const JsonField& model);
  absl::Status ParseMerges(const JsonField& merges);
  absl::StatusOr<std::pair<std::string, std::string>> ParseMerge(const JsonField& merge) const;
  void FillBytes();
  void AddJoint(std::string_view left, std::string_view right);

  const Vocabulary& keys() const { return byte_level_ ? byte_keys_ : spellings_; }
  bool CanCut(std::string_view left, std::string_view right) const;  // two code points
  void EncodeUncut(std::string_view piece, std::vector<uint32_t>& ids) const;
  void MergePiece(std::string_view piece, std::vector<uint32_t>& ids) const;
  void AppendSymbols(std::string_view piece, std::vector<uint32_t>& symbols) const;
  bool AppendFallback(std::string_view symbol, std::vector<uint32_t>& symbols) const;
  const Merge* FindMerge(uint32_t left, uint32_t right) const;
  void MergeShort(std::vector<uint32_t>& symbols) const;
  void MergeLong(std::vector<uint32_t>& symbols) const;

  Vocabulary spellings_;                         // as the file spells them
  Vocabulary byte_keys_;                         // byte level: the bytes they stand for
  absl::flat_hash_map<uint64_t, Merge> merges_;  // by (left id << 32 | right id)
  std::array<int32_t, 256> fallback_;            // id of "<0xNN>", or -1
  std::optional<uint32_t> unk_id_;
  bool byte_level_ = false;
  bool byte_fallback_ = false;
  bool fuse_unk_ = false;
  bool ignore_merges_ = false;

  // Code point level: pairs that stand side by side inside some merged token. Text can be cut
  // between any other two known code points without changing the result, which turns a whole
  // SentencePiece text into words.
  bool can_cut_ = false;
  // Every byte has a token, so that no code point is unknown. (Unknown ones are fused or dropped
  // together with what stands beside them, and so must not be cut off.)
  bool all_known_ = false;
  absl::flat_hash_set<uint64_t> joints_;

  // Filled as pieces come by: most words of a text are one token, and this saves their merges.
  std::unique_ptr<std::atomic<Whole>[]> whole_;
};

}  // namespace penstock
