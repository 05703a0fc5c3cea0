#include "model/tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "base/check.h"
#include "model/tokenizer/bpe_vocabulary.h"
#include "model/tokenizer/punctuation.h"
#include "model/tokenizer/tokenizer_json.h"
#include "model/tokenizer/tokenizer_normalizer.h"

namespace penstock {
namespace {

constexpr int kPreTokenizerDepthMax = 8;
// The split of a ByteLevel step, as published with GPT-2.
constexpr std::string_view kGpt2Pattern =
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::vector<TextSpan> FindText(std::string_view text, std::string_view pattern) {
  std::vector<TextSpan> spans;
  if (pattern.empty()) return spans;
  for (size_t at = text.find(pattern); at != std::string_view::npos;
       at = text.find(pattern, at + pattern.size())) {
    spans.push_back({at, at + pattern.size()});
  }
  return spans;
}

}  // namespace

// A part of a piece, and a flag that marks separators.
struct PreTokenizer::Cut {
  TextSpan span;
  bool match = false;
};

absl::StatusOr<PreTokenizer> PreTokenizer::Parse(const JsonField& field) {
  PreTokenizer pre_tokenizer;
  if (field.present()) RETURN_IF_ERROR(pre_tokenizer.AddSteps(field, 0));
  if (pre_tokenizer.spells_bytes_) pre_tokenizer.steps_.push_back(ReadBytes{});
  return pre_tokenizer;
}

absl::Status PreTokenizer::AddSteps(const JsonField& field, int depth) {
  if (depth > kPreTokenizerDepthMax)
    return InvalidArgument("{} is nested too deeply", field.path());
  ASSIGN_OR_RETURN(const std::string type, field["type"].String());
  if (type != "Sequence") return AddStep(field);
  const JsonField parts = field["pretokenizers"];
  RETURN_IF_ERROR(parts.ExpectArray());
  for (size_t i = 0; i < parts.size(); ++i) RETURN_IF_ERROR(AddSteps(parts[i], depth + 1));
  return absl::OkStatus();
}

absl::Status PreTokenizer::AddStep(const JsonField& field) {
  ASSIGN_OR_RETURN(const std::string type, field["type"].String());
  const bool splits = type == "Split" || type == "Digits" || type == "Punctuation";
  if (byte_level_ && !splits) {
    return field["type"].Unsupported("Digits, Punctuation, Split behind ByteLevel");
  }
  // A ByteLevel rewrites the text into GPT-2's alphabet, which the patterns behind it see: of the
  // two bytes of U+00FC, C3 and BC, the second is spelled U+00BC, which is a number.
  if (byte_level_ && !spells_bytes_) {
    steps_.push_back(SpellBytes{});
    spells_bytes_ = true;
  }
  if (type == "Split") return AddSplit(field);
  if (type == "Digits") return AddDigits(field);
  if (type == "Punctuation") return AddPunctuation(field);
  if (type == "ByteLevel") return AddByteLevel(field);
  if (type == "Metaspace") return AddMetaspace(field);
  return field["type"].Unsupported("ByteLevel, Digits, Metaspace, Punctuation, Sequence, Split");
}

absl::StatusOr<PreTokenizer::Behavior> PreTokenizer::ParseBehavior(const JsonField& field) {
  ASSIGN_OR_RETURN(const std::string name, field.String());
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  return field.Unsupported("Isolated, Removed, MergedWithPrevious, MergedWithNext, Contiguous");
}

absl::Status PreTokenizer::AddSplit(const JsonField& field) {
  ASSIGN_OR_RETURN(const Behavior behavior, ParseBehavior(field["behavior"]));
  ASSIGN_OR_RETURN(const bool invert, field["invert"].BoolOr(false));
  const JsonField pattern = field["pattern"];
  if (pattern["String"].present()) {
    ASSIGN_OR_RETURN(std::string text, pattern["String"].String());
    steps_.push_back(SplitText{std::move(text), behavior, invert});
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const std::string source, pattern["Regex"].String());
  absl::StatusOr<Regex> regex = Regex::Compile(source);
  if (!regex.ok()) return Annotate(regex.status(), pattern.path());
  steps_.push_back(Split{*std::move(regex), behavior, invert});
  return absl::OkStatus();
}

absl::Status PreTokenizer::AddDigits(const JsonField& field) {
  ASSIGN_OR_RETURN(const bool individual, field["individual_digits"].BoolOr(false));
  ASSIGN_OR_RETURN(Regex regex, Regex::Compile("\\p{N}"));
  const Behavior behavior = individual ? Behavior::kIsolated : Behavior::kContiguous;
  steps_.push_back(Split{std::move(regex), behavior});
  return absl::OkStatus();
}

absl::Status PreTokenizer::AddPunctuation(const JsonField& field) {
  Behavior behavior = Behavior::kIsolated;
  if (field["behavior"].present()) {
    ASSIGN_OR_RETURN(behavior, ParseBehavior(field["behavior"]));
  }
  ASSIGN_OR_RETURN(Regex regex, Regex::Compile(fmt::format("[{}]", kPunctuation)));
  steps_.push_back(Split{std::move(regex), behavior});
  return absl::OkStatus();
}

absl::Status PreTokenizer::AddByteLevel(const JsonField& field) {
  ASSIGN_OR_RETURN(const bool prefix_space, field["add_prefix_space"].BoolOr(true));
  ASSIGN_OR_RETURN(const bool use_regex, field["use_regex"].BoolOr(true));
  if (prefix_space) steps_.push_back(PrefixSpace{});
  if (use_regex) {
    ASSIGN_OR_RETURN(Regex regex, Regex::Compile(kGpt2Pattern));
    steps_.push_back(Split{std::move(regex)});
  }
  byte_level_ = true;
  return absl::OkStatus();
}

absl::Status PreTokenizer::AddMetaspace(const JsonField& field) {
  Metaspace step;
  ASSIGN_OR_RETURN(step.replacement, field["replacement"].String());
  ASSIGN_OR_RETURN(step.split, field["split"].BoolOr(true));
  // Older files have add_prefix_space, newer ones prepend_scheme; the newer field takes precedence.
  ASSIGN_OR_RETURN(const bool prefix, field["add_prefix_space"].BoolOr(true));
  ASSIGN_OR_RETURN(const std::string scheme,
                   field["prepend_scheme"].StringOr(prefix ? "always" : "never"));
  if (scheme == "always") {
    step.prefix = PrefixRule::kAlways;
  } else if (scheme == "first") {
    step.prefix = PrefixRule::kFirst;
  } else if (scheme == "never") {
    step.prefix = PrefixRule::kNever;
  } else {
    return field["prepend_scheme"].Unsupported("always, first, never");
  }
  if (step.replacement.empty()) return field["replacement"].Unsupported("one character");
  steps_.push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status PreTokenizer::Apply(PieceList& list) const {
  for (const Step& step : steps_) RETURN_IF_ERROR(ApplyStep(step, list));
  return absl::OkStatus();
}

absl::Status PreTokenizer::ApplyStep(const Step& step, PieceList& list) {
  if (const auto* split = std::get_if<Split>(&step)) {
    const auto find = [&](std::string_view text) { return split->pattern.FindAll(text); };
    return SplitPieces(find, split->behavior, split->invert, list);
  }
  if (const auto* split = std::get_if<SplitText>(&step)) {
    const auto find = [&](std::string_view text) -> absl::StatusOr<std::vector<TextSpan>> {
      return FindText(text, split->pattern);
    };
    return SplitPieces(find, split->behavior, split->invert, list);
  }
  if (const auto* metaspace = std::get_if<Metaspace>(&step)) {
    return ApplyMetaspace(*metaspace, list);
  }
  if (std::holds_alternative<SpellBytes>(step)) {
    RewritePieces(AppendSpelling, list);
  } else if (std::holds_alternative<ReadBytes>(step)) {
    const auto read = [](std::string_view piece, std::string& out) {
      const std::optional<std::string> bytes = BytesOfSpelling(piece);
      PENSTOCK_CHECK(bytes.has_value());
      out += *bytes;
    };
    RewritePieces(read, list);
  } else {
    AddPrefixSpaces(list);
  }
  return absl::OkStatus();
}

template <class FindMatches>
absl::Status PreTokenizer::SplitPieces(const FindMatches& find, Behavior behavior, bool invert,
                                       PieceList& list) {
  std::vector<TextSpan> out;
  std::vector<Cut> cuts;
  for (const TextSpan& piece : list.pieces) {
    const auto text = std::string_view(list.text).substr(piece.begin, piece.end - piece.begin);
    ASSIGN_OR_RETURN(const std::vector<TextSpan> matches, find(text));
    cuts.clear();
    size_t at = 0;
    for (const TextSpan& match : matches) {
      if (at != match.begin) cuts.push_back({{at, match.begin}, invert});
      cuts.push_back({match, !invert});
      at = match.end;
    }
    if (at != text.size()) cuts.push_back({{at, text.size()}, invert});
    for (const TextSpan& span : Join(cuts, behavior)) {
      if (span.begin == span.end) continue;
      out.push_back({piece.begin + span.begin, piece.begin + span.end});
    }
  }
  list.pieces = std::move(out);
  return absl::OkStatus();
}

// SplitDelimiterBehavior of Hugging Face's tokenizers: decides whether a separator is dropped,
// stands alone, or joins a neighbour.
std::vector<TextSpan> PreTokenizer::Join(const std::vector<Cut>& cuts, Behavior behavior) {
  std::vector<TextSpan> out;
  out.reserve(cuts.size());
  if (behavior == Behavior::kMergedWithNext) {
    bool after_match = false;
    for (auto cut = cuts.rbegin(); cut != cuts.rend(); ++cut) {
      if (cut->match && !after_match && !out.empty()) {
        out.back().begin = cut->span.begin;
      } else {
        out.push_back(cut->span);
      }
      after_match = cut->match;
    }
    std::reverse(out.begin(), out.end());
    return out;
  }
  bool after_match = false;
  for (const Cut& cut : cuts) {
    const bool merge =
        !out.empty() && ((behavior == Behavior::kMergedWithPrevious && cut.match && !after_match) ||
                         (behavior == Behavior::kContiguous && cut.match == after_match));
    if (merge) {
      out.back().end = cut.span.end;
    } else if (behavior != Behavior::kRemoved || !cut.match) {
      out.push_back(cut.span);
    }
    after_match = cut.match;
  }
  return out;
}

// `rewrite` appends the new text of a piece to the text of the pieces before.
template <class Rewrite>
void PreTokenizer::RewritePieces(const Rewrite& rewrite, PieceList& list) {
  std::string text;
  for (TextSpan& piece : list.pieces) {
    const size_t begin = text.size();
    rewrite(std::string_view(list.text).substr(piece.begin, piece.end - piece.begin), text);
    piece = {begin, text.size()};
  }
  list.text = std::move(text);
}

void PreTokenizer::AddPrefixSpaces(PieceList& list) {
  const auto rewrite = [](std::string_view piece, std::string& out) {
    if (!piece.starts_with(' ')) out += ' ';
    out += piece;
  };
  RewritePieces(rewrite, list);
}

absl::Status PreTokenizer::ApplyMetaspace(const Metaspace& step, PieceList& list) {
  const auto rewrite = [&](std::string_view piece, std::string& out) {
    const std::string replaced = ReplaceAll(piece, " ", step.replacement);
    const bool first = list.starts_input && out.empty();
    const bool wants_prefix =
        step.prefix == PrefixRule::kAlways || (step.prefix == PrefixRule::kFirst && first);
    if (wants_prefix && !replaced.starts_with(step.replacement)) out += step.replacement;
    out += replaced;
  };
  RewritePieces(rewrite, list);
  if (!step.split) return absl::OkStatus();
  const auto find = [&](std::string_view text) -> absl::StatusOr<std::vector<TextSpan>> {
    return FindText(text, step.replacement);
  };
  return SplitPieces(find, Behavior::kMergedWithNext, false, list);
}

}  // namespace penstock
