#pragma once

#include <string>
#include <variant>
#include <vector>

#include "base/status.h"
#include "model/tokenizer/tokenizer_regex.h"

namespace penstock {

class JsonField;

// A text and its division into pieces. BPE never merges across a boundary between pieces.
struct PieceList {
  std::string text;
  std::vector<TextSpan> pieces;  // in order, none empty
  bool starts_input = false;     // true if the first piece begins the whole input
};

// "pre_tokenizer" of a tokenizer.json: divides normalized text into pieces. Any thread may apply
// it.
class PreTokenizer {
 public:
  // An absent field leaves the text in one piece. Returns INVALID_ARGUMENT for an unsupported step.
  static absl::StatusOr<PreTokenizer> Parse(const JsonField& field);

  // True if the model works on bytes (a ByteLevel step) rather than on code points.
  bool byte_level() const { return byte_level_; }
  absl::Status Apply(PieceList& list) const;

 private:
  // The treatment of a split's separators, by Hugging Face's names.
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
  struct PrefixSpace {};  // puts a space before every piece that starts without one
  // Writes every byte as its character in GPT-2's alphabet, for steps behind a ByteLevel, and back.
  struct SpellBytes {};
  struct ReadBytes {};
  struct Metaspace {
    std::string replacement;
    PrefixRule prefix = PrefixRule::kAlways;
    bool split = true;
  };
  using Step = std::variant<Split, SplitText, PrefixSpace, SpellBytes, ReadBytes, Metaspace>;
  struct Cut;

  absl::Status AddSteps(const JsonField& field, int depth);
  absl::Status AddStep(const JsonField& field);
  absl::Status AddSplit(const JsonField& field);
  absl::Status AddDigits(const JsonField& field);
  absl::Status AddPunctuation(const JsonField& field);
  absl::Status AddByteLevel(const JsonField& field);
  absl::Status AddMetaspace(const JsonField& field);
  static absl::StatusOr<Behavior> ParseBehavior(const JsonField& field);

  static std::vector<TextSpan> Join(const std::vector<Cut>& cuts, Behavior behavior);
  template <class FindMatches>
  static absl::Status SplitPieces(const FindMatches& find, Behavior behavior, bool invert,
                                  PieceList& list);
  template <class Rewrite>
  static void RewritePieces(const Rewrite& rewrite, PieceList& list);
  static void AddPrefixSpaces(PieceList& list);
  static absl::Status ApplyMetaspace(const Metaspace& step, PieceList& list);
  static absl::Status ApplyStep(const Step& step, PieceList& list);

  std::vector<Step> steps_;
  bool byte_level_ = false;
  bool spells_bytes_ = false;  // a step follows ByteLevel
};

}  // namespace penstock
