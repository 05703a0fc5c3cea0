// str(), repr() and json.dumps() of values.
#include <utf8proc.h>

#include <algorithm>
#include <cmath>

#include "base/utf8.h"
#include "model/template/jinja_value.h"

namespace penstock::jinja {
namespace {

std::string FloatText(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  std::string text = fmt::format("{}", number);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

bool IsPrintable(char32_t code_point) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code_point))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return code_point == ' ';
    default:
      return true;
  }
}

void AppendEscaped(char32_t code_point, std::string& out) {
  if (code_point < 0x100) {
    out += fmt::format("\\x{:02x}", static_cast<uint32_t>(code_point));
  } else if (code_point < 0x10000) {
    out += fmt::format("\\u{:04x}", static_cast<uint32_t>(code_point));
  } else {
    out += fmt::format("\\U{:08x}", static_cast<uint32_t>(code_point));
  }
}

std::string ReprString(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const bool has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string out(1, quote);
  while (!text.empty()) {
    const Utf8Step step = DecodeUtf8(text);
    const char32_t c = step.code_point;
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\\' || c == static_cast<char32_t>(quote)) {
      out += {'\\', static_cast<char>(c)};
    } else if (IsPrintable(c)) {
      out += text.substr(0, step.length);
    } else {
      AppendEscaped(c, out);
    }
    text.remove_prefix(step.length);
  }
  return out + quote;
}

std::string ReprList(const List& list) {
  std::string out(1, list.tuple ? '(' : '[');
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) out += ", ";
    out += ToRepr(list.items[i]);
  }
  if (list.tuple && list.items.size() == 1) out += ',';
  return out + (list.tuple ? ')' : ']');
}

std::string ReprDict(const Dict& dict) {
  std::string out = "{";
  for (const auto& [key, value] : dict.entries) {
    if (out.size() > 1) out += ", ";
    out += ReprString(key) + ": " + ToRepr(value);
  }
  return out + "}";
}

// json.dumps() with its spacing.
class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}

  void Write(const Value& value, int level) {
    if (const std::string* text = value.AsString()) {
      WriteString(*text);
    } else if (const List* list = value.AsList()) {
      WriteItems('[', ']', list->items.size(), level,
                 [&](size_t i) { Write(list->items[i], level + 1); });
    } else if (const Dict* dict = value.AsDict()) {
      WriteDict(*dict, level);
    } else {
      WriteScalar(value);
    }
  }

  std::string Take() { return std::move(out_); }

 private:
  void WriteScalar(const Value& value) {
    if (value.Is<None>()) {
      out_ += "null";
    } else if (const bool* flag = std::get_if<bool>(&value.data)) {
      out_ += *flag ? "true" : "false";
    } else if (const double* number = std::get_if<double>(&value.data)) {
      out_ += std::isnan(*number)   ? "NaN"
              : std::isinf(*number) ? (*number > 0 ? "Infinity" : "-Infinity")
                                    : FloatText(*number);
    } else if (value.Is<int64_t>()) {
      out_ += ToText(value);
    } else {
      Fail("a value of type {} cannot be written as JSON", value.TypeName());
    }
  }

  void WriteDict(const Dict& dict, int level) {
    std::vector<const std::pair<std::string, Value>*> entries;
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::sort(entries.begin(), entries.end(),
                [](const auto* a, const auto* b) { return a->first < b->first; });
    }
    WriteItems('{', '}', entries.size(), level, [&](size_t i) {
      WriteString(entries[i]->first);
      out_ += style_.key_separator;
      Write(entries[i]->second, level + 1);
    });
  }

  template <class WriteItem>
  void WriteItems(char open, char close, size_t count, int level, const WriteItem& write_item) {
    out_ += open;
    for (size_t i = 0; i < count; ++i) {
      if (i > 0) out_ += style_.item_separator;
      BreakLine(level + 1);
      write_item(i);
    }
    if (count > 0) BreakLine(level);
    out_ += close;
  }

  void BreakLine(int level) {
    if (style_.indent < 0) return;
    out_ += '\n';
    out_.append(static_cast<size_t>(level) * static_cast<size_t>(style_.indent), ' ');
    if (out_.size() > ChatTemplate::kMaxOutputBytes) {
      throw Error{"tojson writes more than the limit", absl::StatusCode::kResourceExhausted};
    }
  }

  void WriteString(std::string_view text) {
    out_ += '"';
    while (!text.empty()) {
      const Utf8Step step = DecodeUtf8(text);
      WriteCodePoint(step.code_point, text.substr(0, step.length));
      text.remove_prefix(step.length);
    }
    out_ += '"';
  }

  void WriteCodePoint(char32_t c, std::string_view bytes) {
    static constexpr std::string_view kShort = "\"\"\\\\\nn\rr\tt\bb\ff";  // character, escape
    for (size_t i = 0; i < kShort.size(); i += 2) {
      if (c == static_cast<char32_t>(kShort[i])) {
        out_ += {'\\', kShort[i + 1]};
        return;
      }
    }
    const auto escape = [&](uint32_t unit) { out_ += fmt::format("\\u{:04x}", unit); };
    if (c >= 0x20 && (c < 0x7F || !style_.ensure_ascii)) {
      out_ += bytes;
    } else if (c < 0x10000) {
      escape(c);
    } else {
      escape(0xD800 + ((c - 0x10000) >> 10));
      escape(0xDC00 + ((c - 0x10000) & 0x3FF));
    }
  }

  const JsonStyle& style_;
  std::string out_;
};

}  // namespace

std::string ToText(const Value& value) {
  if (const std::string* text = value.AsString()) return *text;
  return value.Is<Undefined>() ? std::string() : ToRepr(value);
}

std::string ToRepr(const Value& value) {
  if (const std::string* text = value.AsString()) return ReprString(*text);
  if (value.Is<Undefined>()) return "Undefined";
  if (value.Is<None>()) return "None";
  if (const bool* flag = std::get_if<bool>(&value.data)) return *flag ? "True" : "False";
  if (const int64_t* number = std::get_if<int64_t>(&value.data)) return fmt::format("{}", *number);
  if (const double* number = std::get_if<double>(&value.data)) return FloatText(*number);
  if (const List* list = value.AsList()) return ReprList(*list);
  if (const Dict* dict = value.AsDict()) return ReprDict(*dict);
  Fail("a value of type {} cannot be written out", value.TypeName());
}

std::string ToJson(const Value& value, const JsonStyle& style) {
  JsonWriter writer(style);
  writer.Write(value, 0);
  return writer.Take();
}

}  // namespace penstock::jinja
