#include "model/template/jinja_text.h"

#include <utf8proc.h>

#include <algorithm>

#include "base/utf8.h"

namespace penstock::jinja {
namespace {

size_t LastCodePoint(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

bool IsStripped(std::string_view code_point, const std::optional<std::string>& characters) {
  if (!characters) return IsPythonSpace(DecodeUtf8(code_point).code_point);
  return characters->find(code_point) != std::string::npos;
}

void AppendUpper(char32_t code_point, std::string& out) {
  if (code_point == 0xDF) {  // the one common letter whose capital is two letters
    out += "SS";
    return;
  }
  AppendUtf8(static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code_point))),
             out);
}

void AppendLower(char32_t code_point, std::string& out) {
  AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code_point))),
             out);
}

bool IsCased(char32_t code_point) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code_point));
  return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
         category == UTF8PROC_CATEGORY_LT;
}

// Calls visit(code point) for each code point.
template <class Visit>
void ForEach(std::string_view text, const Visit& visit) {
  while (!text.empty()) {
    const Utf8Step step = DecodeUtf8(text);
    visit(step.code_point);
    text.remove_prefix(step.length);
  }
}

// Upper case if starts_word(previous) is true, else lower case.
template <class StartsWord>
std::string Title(std::string_view text, const StartsWord& starts_word) {
  std::string out;
  char32_t previous = ' ';
  ForEach(text, [&](char32_t code_point) {
    if (starts_word(previous)) {
      AppendUpper(code_point, out);
    } else {
      AppendLower(code_point, out);
    }
    previous = code_point;
  });
  return out;
}

}  // namespace

bool IsPythonSpace(char32_t code_point) {
  return IsUnicodeSpace(code_point) || (code_point >= 0x1C && code_point <= 0x1F);
}

int64_t CodePointCount(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
}

size_t ByteOffset(std::string_view text, int64_t index) {
  size_t at = 0;
  for (; index > 0 && at < text.size(); --index) at += Utf8Length(text[at]);
  return std::min(at, text.size());
}

std::string_view Strip(std::string_view text, Side side,
                       const std::optional<std::string>& characters) {
  while (side != Side::kRight && !text.empty()) {
    const size_t length = Utf8Length(text[0]);
    if (!IsStripped(text.substr(0, length), characters)) break;
    text.remove_prefix(length);
  }
  while (side != Side::kLeft && !text.empty()) {
    const size_t last = LastCodePoint(text);
    if (!IsStripped(text.substr(last), characters)) break;
    text = text.substr(0, last);
  }
  return text;
}

std::string Upper(std::string_view text) {
  std::string out;
  ForEach(text, [&](char32_t code_point) { AppendUpper(code_point, out); });
  return out;
}

std::string Lower(std::string_view text) {
  std::string out;
  ForEach(text, [&](char32_t code_point) { AppendLower(code_point, out); });
  return out;
}

std::string Capitalize(std::string_view text) {
  const size_t first = text.empty() ? 0 : Utf8Length(text[0]);
  return Upper(text.substr(0, first)) + Lower(text.substr(first));
}

std::string TitleMethod(std::string_view text) {
  return Title(text, [](char32_t previous) { return !IsCased(previous); });
}

std::string TitleFilter(std::string_view text) {
  return Title(text, [](char32_t previous) {
    return IsPythonSpace(previous) || previous == '-' || previous == '(' || previous == '{' ||
           previous == '[' || previous == '<';
  });
}

std::vector<std::string> Split(std::string_view text, const std::optional<std::string>& separator,
                               int64_t max_splits) {
  std::vector<std::string> parts;
  const auto may_split = [&] {
    return max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits;
  };
  if (separator) {
    for (size_t found = text.find(*separator); found != std::string_view::npos && may_split();
         found = text.find(*separator)) {
      parts.emplace_back(text.substr(0, found));
      text.remove_prefix(found + separator->size());
    }
    parts.emplace_back(text);
    return parts;
  }
  text = Strip(text, Side::kLeft);
  while (!text.empty()) {
    size_t end = 0;
    while (end < text.size() && !IsPythonSpace(DecodeUtf8(text.substr(end)).code_point)) {
      end += Utf8Length(text[end]);
    }
    if (!may_split()) {
      parts.emplace_back(text);
      break;
    }
    parts.emplace_back(text.substr(0, end));
    text = Strip(text.substr(end), Side::kLeft);
  }
  return parts;
}

std::vector<std::string> SplitFromRight(std::string_view text, std::string_view separator,
                                        int64_t max_splits) {
  std::vector<std::string> parts;
  while (max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits) {
    const size_t found = text.rfind(separator);
    if (found == std::string_view::npos) break;
    parts.emplace_back(text.substr(found + separator.size()));
    text = text.substr(0, found);
  }
  parts.emplace_back(text);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string> SplitLines(std::string_view text) {
  const auto ends_line = [](char32_t c) {
    return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
  };
  std::vector<std::string> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = DecodeUtf8(text.substr(at));
    const size_t end = at;
    at += step.length;
    if (!ends_line(step.code_point)) continue;
    if (step.code_point == '\r' && at < text.size() && text[at] == '\n') ++at;
    lines.emplace_back(text.substr(begin, end - begin));
    begin = at;
  }
  if (begin < text.size()) lines.emplace_back(text.substr(begin));
  return lines;
}

std::string Replace(std::string_view text, std::string_view from, std::string_view to,
                    int64_t count) {
  std::string out;
  while (count != 0) {
    const size_t found = text.find(from);
    if (found == std::string_view::npos) break;
    out.append(text.substr(0, found)).append(to);
    text.remove_prefix(found + from.size());
    --count;
    if (!from.empty()) continue;
    if (text.empty()) return out;
    const size_t length = Utf8Length(text[0]);
    out.append(text.substr(0, length));
    text.remove_prefix(length);
  }
  return out.append(text);
}

std::string HtmlEscape(std::string_view text) {
  std::string out;
  for (char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace penstock::jinja
