#pragma once

#include <string>
#include <variant>
#include <vector>

#include "base/status.h"
#include "model/tokenizer/tokenizer_regex.h"

namespace penstock {

class JsonField;

// Text and how it is cut so far; merges never cross a cut.
struct PieceList {
  std::string text;
  std::vector<TextSpan> pieces;  // in order, none empty
  bool starts_input = false;     // whether the first piece is the beginning of the whole input
};

// tokenizer.json's "pre_tokenizer": cuts normalized text into pieces. Any thread.
class PreTokenizer {
 public:
  // A field that is not present leaves text in one piece.
  static absl::StatusOr<PreTokenizer> Parse(const JsonField& field);

  // Whether the model works on bytes (a ByteLevel step) rather than on code points.
  bool byte_level() const { return byte_level_; }
  absl::Status Apply(PieceList& list) const;

 private:
  // What becomes of the separators of a split; Hugging Face's names.
  enum class Behavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };
  enum class PrefixRule { kAlways, kFirst, kNever };

  struct Split {
    Regex pattern;
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
  };
  struct SplitText {
    std::string pattern;
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
  };
  struct PrefixSpace {};  // a space in front of every piece without one
  struct Metaspace {
    std::string replacement;
    PrefixRule prefix = PrefixRule::kAlways;
    bool split = true;
  };
  using Step = std::variant<Split, SplitText, PrefixSpace, Metaspace>;
  struct Cut;

  absl::Status AddSteps(const JsonField& field, int depth);
  absl::Status AddSplit(const JsonField& field);
  absl::Status AddDigits(const JsonField& field);
  absl::Status AddByteLevel(const JsonField& field);
  absl::Status AddMetaspace(const JsonField& field);
  static absl::StatusOr<Behavior> ParseBehavior(const JsonField& field);

  static std::vector<TextSpan> Join(const std::vector<Cut>& cuts, Behavior behavior);
  template <class FindMatches>
  static absl::Status SplitPieces(const FindMatches& find, Behavior behavior, bool invert,
                                  PieceList& list);
  static void AddPrefixSpaces(PieceList& list);
  static absl::Status ApplyMetaspace(const Metaspace& step, PieceList& list);
  static absl::Status ApplyStep(const Step& step, PieceList& list);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

}  // namespace penstock
