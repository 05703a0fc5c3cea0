#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "model/tokenizer/tokenizer_regex.h"

namespace penstock {

class JsonField;

// NFC, NFD, NFKC, NFKD.
struct UnicodeForm {
  bool composed = true;
  bool compatible = false;
};

// In n log n even for hostile runs of combining marks.
std::string NormalizeUnicode(std::string_view text, UnicodeForm form);

// What tokenizer.json's "normalizer" does to text before it is split. Any thread.
class Normalizer {
 public:
  // A field that is not present gives the identity.
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

// Every `from` replaced; an empty `from` replaces nothing.
std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to);

}  // namespace penstock
