#include "model/tokenizer/tokenizer_normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "base/utf8.h"
#include "model/tokenizer/tokenizer_json.h"

namespace penstock {
namespace {

constexpr int kNormalizerDepthMax = 8;

// True if `text` is its own normal form without further checks: all code points are below U+0300
// (NFC), or ASCII (other forms).
bool IsPlain(std::string_view text, UnicodeForm form) {
  const uint8_t limit = form.composed && !form.compatible ? 0xCC : 0x80;
  return std::all_of(text.begin(), text.end(),
                     [&](char c) { return static_cast<uint8_t>(c) < limit; });
}

int CombiningClass(int32_t code_point) {
  return static_cast<int>(utf8proc_get_property(code_point)->combining_class);
}

std::vector<int32_t> Decompose(std::string_view text, bool compatible) {
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                      (compatible ? UTF8PROC_COMPAT : 0));
  std::vector<int32_t> out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Utf8Step step = DecodeUtf8(text);
    int32_t parts[32];
    int boundary = 0;
    const auto count = utf8proc_decompose_char(static_cast<int32_t>(step.code_point), parts, 32,
                                               options, &boundary);
    PENSTOCK_CHECK(count >= 0 && count <= 32);
    out.insert(out.end(), parts, parts + count);
    text.remove_prefix(step.length);
  }
  return out;
}

// Canonical ordering (Unicode Standard, section 3.11): sorts each run of marks stably by combining
// class. utf8proc's own pass is a bubble sort, quadratic in the length of the run.
void SortMarks(std::vector<int32_t>& points) {
  for (auto at = points.begin(); at != points.end();) {
    const auto is_mark = [](int32_t c) { return CombiningClass(c) != 0; };
    const auto first = std::find_if(at, points.end(), is_mark);
    const auto last = std::find_if_not(first, points.end(), is_mark);
    if (last - first > 1) {
      std::stable_sort(first, last,
                       [](int32_t a, int32_t b) { return CombiningClass(a) < CombiningClass(b); });
    }
    at = last;
  }
}

}  // namespace

std::string NormalizeUnicode(std::string_view text, UnicodeForm form) {
  if (IsPlain(text, form)) return std::string(text);
  std::vector<int32_t> points = Decompose(text, form.compatible);
  SortMarks(points);
  auto length = static_cast<utf8proc_ssize_t>(points.size());
  if (form.composed) {
    const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    length = utf8proc_normalize_utf32(points.data(), length, options);
  }
  PENSTOCK_CHECK_GE(length, 0);
  std::string out;
  out.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < length; ++i) {
    AppendUtf8(static_cast<char32_t>(points[static_cast<size_t>(i)]), out);
  }
  return out;
}

std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to) {
  if (from.empty()) return std::string(text);
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0;;) {
    const size_t found = text.find(from, at);
    out.append(text.substr(at, found - at));
    if (found == std::string_view::npos) return out;
    out.append(to);
    at = found + from.size();
  }
}

absl::StatusOr<Normalizer> Normalizer::Parse(const JsonField& field) {
  Normalizer normalizer;
  if (field.present()) RETURN_IF_ERROR(normalizer.AddSteps(field, 0));
  return normalizer;
}

absl::Status Normalizer::AddSteps(const JsonField& field, int depth) {
  if (depth > kNormalizerDepthMax) return InvalidArgument("{} is nested too deeply", field.path());
  ASSIGN_OR_RETURN(const std::string type, field["type"].String());
  if (type == "Sequence") {
    const JsonField parts = field["normalizers"];
    RETURN_IF_ERROR(parts.ExpectArray());
    for (size_t i = 0; i < parts.size(); ++i) RETURN_IF_ERROR(AddSteps(parts[i], depth + 1));
    return absl::OkStatus();
  }
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    steps_.push_back(UnicodeForm{.composed = type.back() == 'C', .compatible = type[2] == 'K'});
    return absl::OkStatus();
  }
  if (type == "Prepend") {
    ASSIGN_OR_RETURN(std::string prefix, field["prepend"].String());
    steps_.push_back(Prepend{std::move(prefix)});
    return absl::OkStatus();
  }
  if (type == "Replace") return AddReplace(field);
  return field["type"].Unsupported("NFC, NFD, NFKC, NFKD, Prepend, Replace, Sequence");
}

absl::Status Normalizer::AddReplace(const JsonField& field) {
  ASSIGN_OR_RETURN(std::string to, field["content"].String());
  const JsonField pattern = field["pattern"];
  if (pattern["String"].present()) {
    ASSIGN_OR_RETURN(std::string from, pattern["String"].String());
    steps_.push_back(Replace{std::move(from), std::move(to)});
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const std::string source, pattern["Regex"].String());
  absl::StatusOr<Regex> regex = Regex::Compile(source);
  if (!regex.ok()) return Annotate(regex.status(), pattern.path());
  steps_.push_back(ReplaceRegex{*std::move(regex), std::move(to)});
  return absl::OkStatus();
}

absl::StatusOr<std::string> Normalizer::Apply(std::string_view text) const {
  std::string out(text);
  for (const Step& step : steps_) {
    ASSIGN_OR_RETURN(out, ApplyStep(step, std::move(out)));
  }
  return out;
}

absl::StatusOr<std::string> Normalizer::ApplyStep(const Step& step, std::string text) {
  if (const auto* form = std::get_if<UnicodeForm>(&step)) return NormalizeUnicode(text, *form);
  if (const auto* prepend = std::get_if<Prepend>(&step)) {
    return text.empty() ? text : prepend->prefix + text;
  }
  if (const auto* replace = std::get_if<Replace>(&step)) {
    return ReplaceAll(text, replace->from, replace->to);
  }
  const auto& regex = std::get<ReplaceRegex>(step);
  ASSIGN_OR_RETURN(const std::vector<TextSpan> spans, regex.pattern.FindAll(text));
  std::string out;
  size_t at = 0;
  for (const TextSpan& span : spans) {
    out.append(text, at, span.begin - at).append(regex.to);
    at = span.end;
  }
  return out.append(text, at);
}

}  // namespace penstock
