#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/tokenizer/tokenizer_regex.h"

#include <pcre2.h>

#include "base/utf8.h"

namespace penstock {
namespace {

constexpr size_t kMaxPatternBytes = 64 << 10;

struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeMatchContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

std::string ErrorText(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

// PCRE2's \s includes U+180E, which left White_Space in Unicode 6.3; Oniguruma follows Unicode.
// Therefore \s is replaced by the list of its characters, and \S likewise outside a class.
std::string WithUnicodeSpaces(std::string_view pattern) {
  static constexpr std::string_view kSpaces =
      "\\x{09}-\\x{0D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}"
      "\\x{205F}\\x{3000}";
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char escaped = pattern[++i];
      if (escaped == 's') {
        out += in_class ? std::string(kSpaces) : fmt::format("[{}]", kSpaces);
      } else if (escaped == 'S' && !in_class) {
        out += fmt::format("[^{}]", kSpaces);
      } else {
        out += {'\\', escaped};
      }
      continue;
    }
    if (in_class && pattern.substr(i, 2) == "[:") {  // the ] of [[:alpha:]] does not end the class
      const size_t end = pattern.find(":]", i);
      if (end != std::string_view::npos) {
        out += pattern.substr(i, end + 2 - i);
        i = end + 1;
        continue;
      }
    }
    if (c == '[') in_class = true;
    if (c == ']') in_class = false;
    out += c;
  }
  return out;
}

// One pass over one text: holds the matching state, which threads must not share.
class Matcher {
 public:
  Matcher(const pcre2_code* code, std::string_view text)
      : code_(code),
        text_(text),
        data_(pcre2_match_data_create(1, nullptr)),
        context_(pcre2_match_context_create(nullptr)) {
    // Enough for a pattern that reads each byte a few times per match; not for exponential
    // backtracking.
    const size_t steps = std::min<size_t>(16 * text.size() + (64 << 10), UINT32_MAX);
    pcre2_set_match_limit(context_.get(), static_cast<uint32_t>(steps));
    pcre2_set_heap_limit(context_.get(), 256 << 10);  // KiB
  }

  // Sets `span` to the match and returns true; false at the end of the text.
  absl::StatusOr<bool> Find(size_t from, TextSpan& span) {
    int rc = Match(from, 0);
    // Long backtracking overflows the machine stack of JIT code; the interpreter uses the heap.
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) rc = Match(from, PCRE2_NO_JIT);
    if (rc == PCRE2_ERROR_NOMATCH) return false;
    if (rc < 0) {
      return ResourceExhausted("{} at byte {} of {}", ErrorText(rc), from, text_.size());
    }
    const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(data_.get());
    span = {offsets[0], offsets[1]};
    return true;
  }

 private:
  int Match(size_t from, uint32_t options) {
    return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text_.data()), text_.size(), from,
                       options | PCRE2_NO_UTF_CHECK, data_.get(), context_.get());
  }

  const pcre2_code* code_;
  std::string_view text_;
  std::unique_ptr<pcre2_match_data, FreeMatchData> data_;
  std::unique_ptr<pcre2_match_context, FreeMatchContext> context_;
};

}  // namespace

void Regex::FreeCode::operator()(void* code) const {
  pcre2_code_free(static_cast<pcre2_code*>(code));
}

absl::StatusOr<Regex> Regex::Compile(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return InvalidArgument("a pattern of {} bytes, the limit is {}", pattern.size(),
                           kMaxPatternBytes);
  }
  const std::string rewritten = WithUnicodeSpaces(pattern);
  int error = 0;
  PCRE2_SIZE offset = 0;
  // MULTILINE: in Oniguruma ^ and $ match at every line. \C is forbidden, because it could split a
  // code point.
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(rewritten.data()), rewritten.size(),
                                   options, &error, &offset, nullptr);
  if (code == nullptr) {
    return InvalidArgument("pattern {} does not compile: {} at {}", pattern, ErrorText(error),
                           offset);
  }
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // without JIT support the interpreter runs
  return Regex(code, std::string(pattern));
}

absl::StatusOr<std::vector<TextSpan>> Regex::FindAll(std::string_view text) const {
  std::vector<TextSpan> spans;
  Matcher matcher(static_cast<const pcre2_code*>(code_.get()), text);
  size_t from = 0;
  while (from <= text.size()) {
    TextSpan span;
    const absl::StatusOr<bool> found = matcher.Find(from, span);
    if (!found.ok()) return Annotate(found.status(), fmt::format("pattern {}", pattern_));
    if (!*found) break;
    if (span.begin < from || span.end < span.begin) {  // \K in a lookaround makes such matches
      return InvalidArgument("pattern {} matches backwards", pattern_);
    }
    const bool empty_after_match =
        span.begin == span.end && !spans.empty() && spans.back().end == span.end;
    if (!empty_after_match) spans.push_back(span);
    from = span.end;
    if (span.begin == span.end) from += from < text.size() ? Utf8Length(text[from]) : 1;
  }
  return spans;
}

}  // namespace penstock
