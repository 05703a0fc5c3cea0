#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "model/tokenizer/tokenizer_regex.h"

namespace penstock {

class JsonField;

// A Unicode normalization form: NFC, NFD, NFKC or NFKD (Unicode Standard Annex 15).
struct UnicodeForm {
  bool composed = true;
  bool compatible = false;
};

// Takes O(n log n) time even for hostile runs of combining marks.
std::string NormalizeUnicode(std::string_view text, UnicodeForm form);

// "normalizer" of a tokenizer.json: the changes to a text before it is split. Any thread may apply
// it.
class Normalizer {
 public:
  // An absent field gives the identity. Returns INVALID_ARGUMENT for an unsupported step.
  static absl::StatusOr<Normalizer> Parse(const JsonField& field);

  bool identity() const { return steps_.empty(); }
  absl::StatusOr<std::string> Apply(std::string_view text) const;

 private:
  struct Prepend {
    std::string prefix;
  };
  struct Replace {
    std::string from;
    std::string to;
  };
  struct ReplaceRegex {
    Regex pattern;
    std::string to;
  };
  using Step = std::variant<UnicodeForm, Prepend, Replace, ReplaceRegex>;

  absl::Status AddSteps(const JsonField& field, int depth);
  absl::Status AddReplace(const JsonField& field);
  static absl::StatusOr<std::string> ApplyStep(const Step& step, std::string text);

  std::vector<Step> steps_;
};

// Replaces every occurrence of `from`; an empty `from` replaces nothing.
std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to);

}  // namespace penstock
