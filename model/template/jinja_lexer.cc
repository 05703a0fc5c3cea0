#include "model/template/jinja_lexer.h"

#include <algorithm>

#include "base/utf8.h"
#include "model/template/jinja_text.h"
#include "model/template/jinja_value.h"

namespace penstock::jinja {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameStart(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<uint8_t>(c) >= 0x80;
}
bool IsNamePart(char c) { return IsNameStart(c) || IsDigit(c); }

// Replaces \r\n and \r by \n, and drops one newline at the end.
std::string NormalizeLines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
      continue;
    }
    out += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  std::vector<Token> Run() {
    while (at_ < source_.size()) LexText();
    Add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view Rest() const { return source_.substr(at_); }
  bool Sees(std::string_view text) const { return Rest().starts_with(text); }
  void Advance(size_t count) {
    line_ +=
        static_cast<int>(std::count(source_.begin() + at_, source_.begin() + at_ + count, '\n'));
    at_ += count;
  }
  void Add(TokenKind kind, std::string_view text) {
    tokens_.push_back({kind, std::string(text), line_});
  }
  [[noreturn]] void FailHere(std::string message) const {
    throw Error{std::move(message), absl::StatusCode::kInvalidArgument, line_};
  }

  // Lexes the text up to the next tag, and the beginning of that tag.
  void LexText() {
    size_t tag = at_;
    const auto is_tag = [&](size_t i) {
      return source_[i] == '{' && i + 1 < source_.size() &&
             (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#');
    };
    while (tag < source_.size() && !is_tag(tag)) ++tag;
    const std::string_view text = source_.substr(at_, tag - at_);
    if (tag == source_.size()) {
      AddText(text, text.size());
      return;
    }
    const char kind = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
    AddText(text, KeptBeforeTag(text, kind, sign));
    line_starting_ = false;
    Advance(2);
    if (sign == '-' || sign == '+') Advance(1);
    if (kind == '#') {
      SkipComment();
    } else if (kind == '%' && SkipRawBegin()) {
      LexRaw();
    } else {
      LexTag(kind);
    }
  }

  // Adds the first `kept` bytes of `text` as a token and skips all of it.
  void AddText(std::string_view text, size_t kept) {
    if (kept > 0) Add(TokenKind::kText, text.substr(0, kept));
    Advance(text.size());
  }

  // lstrip_blocks: white space between the start of a line and a block tag is dropped.
  size_t KeptBeforeTag(std::string_view text, char kind, char sign) const {
    if (sign == '-') return Strip(text, Side::kRight).size();
    if (kind == '{' || sign == '+') return text.size();
    const size_t newline = text.rfind('\n');
    const size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
    if (line_begin == 0 && !line_starting_) return text.size();
    return Strip(text.substr(line_begin), Side::kLeft).empty() ? line_begin : text.size();
  }

  // After a tag, "-" drops all white space, and trim_blocks one newline.
  void EndTag(char sign, bool trims) {
    const size_t begin = at_;
    if (sign == '-') {
      Advance(Rest().size() - Strip(Rest(), Side::kLeft).size());
    } else if (trims && sign != '+' && Sees("\n")) {
      Advance(1);
    }
    line_starting_ = at_ > begin && source_[at_ - 1] == '\n';
  }

  void SkipComment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string_view::npos) FailHere("a comment has no end");
    const char sign = end > at_ ? source_[end - 1] : ' ';
    Advance(end + 2 - at_);
    EndTag(sign, /*trims=*/true);
  }

  bool SkipSpacesAndWord(size_t& at, std::string_view word) const {
    while (at < source_.size() && IsPythonSpace(static_cast<uint8_t>(source_[at]))) ++at;
    if (!source_.substr(at).starts_with(word)) return false;
    at += word.size();
    while (at < source_.size() && IsPythonSpace(static_cast<uint8_t>(source_[at]))) ++at;
    return true;
  }

  // Skips "raw -%}" after "{%".
  bool SkipRawBegin() {
    size_t at = at_;
    if (!SkipSpacesAndWord(at, "raw")) return false;
    const bool strips = source_.substr(at).starts_with("-%}");
    if (!strips && !source_.substr(at).starts_with("%}")) return false;
    Advance(at + (strips ? 3 : 2) - at_);
    EndTag(strips ? '-' : ' ', /*trims=*/false);
    return true;
  }

  void LexRaw() {
    for (size_t tag = source_.find("{%", at_); tag != std::string_view::npos;
         tag = source_.find("{%", tag + 2)) {
      size_t end = tag + 2;
      const char sign = end < source_.size() ? source_[end] : ' ';
      if (sign == '-' || sign == '+') ++end;
      if (!SkipSpacesAndWord(end, "endraw")) continue;
      const char end_sign = end < source_.size() ? source_[end] : ' ';
      if (end_sign == '-' || end_sign == '+') ++end;
      if (!source_.substr(end).starts_with("%}")) continue;
      const std::string_view text = source_.substr(at_, tag - at_);
      AddText(text, KeptBeforeTag(text, '%', sign));
      Advance(end + 2 - at_);
      EndTag(end_sign, /*trims=*/true);
      return;
    }
    FailHere("a raw block has no end");
  }

  void LexTag(char kind) {
    const bool block = kind == '%';
    const std::string_view end = block ? "%}" : "}}";
    Add(block ? TokenKind::kBlockBegin : TokenKind::kPrintBegin, "");
    int open = 0;  // open brackets: inside of them }} ends two dicts
    while (true) {
      while (at_ < source_.size() && IsPythonSpace(static_cast<uint8_t>(source_[at_]))) Advance(1);
      if (at_ >= source_.size()) FailHere("a tag has no end");
      const char sign = source_[at_];
      const bool signed_end =
          (sign == '-' || (sign == '+' && block)) && source_.substr(at_ + 1).starts_with(end);
      if (open == 0 && (signed_end || Sees(end))) {
        Advance(signed_end ? 3 : 2);
        Add(block ? TokenKind::kBlockEnd : TokenKind::kPrintEnd, "");
        EndTag(signed_end ? sign : ' ', block);
        return;
      }
      LexExpressionToken(open);
    }
  }

  void LexExpressionToken(int& open) {
    const char c = source_[at_];
    if (IsDigit(c)) return LexNumber();
    if (c == '"' || c == '\'') return LexString(c);
    if (IsNameStart(c)) {
      size_t end = at_;
      while (end < source_.size() && IsNamePart(source_[end])) ++end;
      Add(TokenKind::kName, source_.substr(at_, end - at_));
      return Advance(end - at_);
    }
    static constexpr std::string_view kOperators[] = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "*", "/", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    for (std::string_view op : kOperators) {
      if (!Sees(op)) continue;
      if (op == "(" || op == "[" || op == "{") ++open;
      if ((op == ")" || op == "]" || op == "}") && --open < 0) {
        FailHere(fmt::format("unexpected '{}'", op));
      }
      Add(TokenKind::kOperator, op);
      return Advance(op.size());
    }
    FailHere(fmt::format("unexpected character '{}'", Rest().substr(0, Utf8Length(c))));
  }

  size_t EndOfDigits(size_t at) const {
    while (at < source_.size() && (IsDigit(source_[at]) || source_[at] == '_')) ++at;
    return at;
  }

  void LexNumber() {
    size_t end = EndOfDigits(at_);
    TokenKind kind = TokenKind::kInteger;
    if (end + 1 < source_.size() && source_[end] == '.' && IsDigit(source_[end + 1])) {
      kind = TokenKind::kFloat;
      end = EndOfDigits(end + 1);
    }
    if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
      size_t exponent = end + 1;
      if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) {
        ++exponent;
      }
      if (exponent < source_.size() && IsDigit(source_[exponent])) {
        kind = TokenKind::kFloat;
        end = EndOfDigits(exponent);
      }
    }
    if (end < source_.size() && IsNamePart(source_[end])) FailHere("a malformed number");
    std::string digits(source_.substr(at_, end - at_));
    std::erase(digits, '_');
    Add(kind, digits);
    Advance(end - at_);
  }

  void LexString(char quote) {
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) FailHere("a string has no end");
    Add(TokenKind::kString, Unescape(source_.substr(at_ + 1, end - at_ - 1)));
    Advance(end + 1 - at_);
  }

  // Resolves escapes as in Python's string literals; an unknown escape is kept unchanged.
  std::string Unescape(std::string_view text) const {
    std::string out;
    for (size_t i = 0; i < text.size();) {
      if (text[i] != '\\') {
        out += text[i++];
        continue;
      }
      const char c = text[i + 1];
      i += 2;
      static constexpr std::string_view kSimple = "n\nt\tr\r\\\\'\'\"\"a\ab\bf\fv\v";
      size_t simple = 0;
      while (simple < kSimple.size() && kSimple[simple] != c) simple += 2;
      if (simple < kSimple.size()) {
        out += kSimple[simple + 1];
      } else if (c >= '0' && c <= '7') {
        i = AppendNumber(text, i - 1, 3, 8, out);
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        const size_t next = AppendNumber(text, i, digits, 16, out);
        if (next != i + digits) FailHere(fmt::format("a malformed \\{} escape", c));
        i = next;
      } else if (c != '\n') {
        out += {'\\', c};
      }
    }
    return out;
  }

  size_t AppendNumber(std::string_view text, size_t at, size_t max_digits, uint32_t base,
                      std::string& out) const {
    uint32_t number = 0;
    size_t digits = 0;
    for (; digits < max_digits && at < text.size(); ++at, ++digits) {
      static constexpr std::string_view kDigits = "0123456789abcdef";
      const size_t digit = kDigits.find(
          static_cast<char>(text[at] >= 'A' && text[at] <= 'F' ? text[at] + 32 : text[at]));
      if (digit >= base) break;
      number = number * base + static_cast<uint32_t>(digit);
    }
    if (number > 0x10FFFF || (number >= 0xD800 && number <= 0xDFFF)) {
      FailHere("an escape is not a Unicode character");
    }
    AppendUtf8(number, out);
    return at;
  }

  std::string_view source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> Lex(std::string_view source) {
  const std::string normalized = NormalizeLines(source);
  return Lexer(normalized).Run();
}

}  // namespace penstock::jinja
