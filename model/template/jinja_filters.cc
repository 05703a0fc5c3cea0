// The filters that work on one value.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "model/template/jinja_filter_tables.h"
#include "model/template/jinja_operators.h"
#include "model/template/jinja_text.h"

namespace penstock::jinja {
namespace {

constexpr int64_t kMaxIndent = 64;

Value ToJsonFilter(Host& host, const Arguments& arguments) {
  JsonStyle style;
  style.ensure_ascii = arguments.FlagOr(1, false);
  style.sort_keys = arguments.FlagOr(4, false);
  if (arguments.Has(2) && !arguments[2].Is<None>()) {
    const int64_t indent = arguments.Integer(2);
    if (indent < 0 || indent > kMaxIndent) Fail("tojson: an indent of {}", indent);
    style.indent = static_cast<int>(indent);
    style.item_separator = std::string(1, ',');
  }
  if (arguments.Has(3) && !arguments[3].Is<None>()) {
    const List* separators = arguments[3].AsList();
    if (separators == nullptr || separators->items.size() != 2 ||
        separators->items[0].AsString() == nullptr || separators->items[1].AsString() == nullptr) {
      Fail("tojson: separators are not two strings");
    }
    style.item_separator = *separators->items[0].AsString();
    style.key_separator = *separators->items[1].AsString();
  }
  std::string text = ToJson(arguments.input(), style);
  host.Spend(static_cast<int64_t>(text.size() / 4));
  return BoundedText(host, std::move(text));
}

Value Trim(Host&, const Arguments& arguments) {
  const std::string text = ToText(arguments.input());
  return Value(std::string(Strip(text, Side::kBoth, arguments.TextIfGiven(1))));
}

Value LengthFilter(Host&, const Arguments& arguments) { return Value(Length(arguments.input())); }

template <std::string (*kChange)(std::string_view)>
Value ChangeText(Host&, const Arguments& arguments) {
  return Value(kChange(ToText(arguments.input())));
}

Value Default(Host&, const Arguments& arguments) {
  const Value& value = arguments.input();
  const bool missing = value.Is<Undefined>() || (arguments.FlagOr(2, false) && !value.Truthy());
  if (!missing) return value;
  return arguments.Has(1) ? arguments[1] : Value(std::string());
}

Value StringFilter(Host&, const Arguments& arguments) { return Value(ToText(arguments.input())); }
Value Safe(Host&, const Arguments& arguments) { return Value(ToText(arguments.input())); }

Value Int(Host&, const Arguments& arguments) {
  const Value& value = arguments.input();
  int64_t number = 0;
  if (value.AsInteger(number)) return Value(number);
  Value missing = arguments.Has(1) ? arguments[1] : Value(int64_t{0});
  double real = 0;
  bool found = value.AsNumber(real);
  if (const std::string* text = value.AsString()) {
    const std::string_view digits = Strip(*text, Side::kBoth);
    const char* end = digits.data() + digits.size();
    if (std::from_chars(digits.data(), end, number).ptr == end && !digits.empty()) {
      return Value(number);
    }
    const auto [stop, error] = std::from_chars(digits.data(), end, real);
    found = error == std::errc() && stop == end;
  }
  if (!found || !(std::abs(real) < 9.2e18)) return missing;
  return Value(static_cast<int64_t>(real));
}

Value Float(Host&, const Arguments& arguments) {
  const Value& value = arguments.input();
  double number = 0;
  if (value.AsNumber(number)) return Value(number);
  if (const std::string* text = value.AsString()) {
    const std::string_view digits = Strip(*text, Side::kBoth);
    const char* end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, number);
    if (error == std::errc() && stop == end) return Value(number);
  }
  return arguments.Has(1) ? arguments[1] : Value(0.0);
}

Value Abs(Host&, const Arguments& arguments) {
  const Value& value = arguments.input();
  double number = 0;
  if (!value.AsNumber(number)) Fail("abs: a value of type {}", value.TypeName());
  return number < 0 ? Negate(value) : value;
}

Value Round(Host&, const Arguments& arguments) {
  double number = 0;
  if (!arguments.input().AsNumber(number)) {
    Fail("round: a value of type {}", arguments.input().TypeName());
  }
  const double scale = std::pow(10.0, static_cast<double>(arguments.IntegerOr(1, 0)));
  const std::string method = arguments.Has(2) ? arguments.Text(2) : std::string("common");
  if (method == "common" && !arguments.input().Is<double>() && arguments.IntegerOr(1, 0) >= 0) {
    return arguments.input();
  }
  const double scaled = number * scale;
  if (method == "ceil") return Value(std::ceil(scaled) / scale);
  if (method == "floor") return Value(std::floor(scaled) / scale);
  return Value(std::nearbyint(scaled) / scale);  // rounds half to even, as Python does
}

Value Indent(Host& host, const Arguments& arguments) {
  const std::string& text = arguments.Text(0);
  std::string prefix;
  if (arguments.Has(1) && arguments[1].AsString()) {
    prefix = arguments.Text(1);
  } else {
    const int64_t width = arguments.IntegerOr(1, 4);
    if (width < 0 || width > kMaxIndent) Fail("indent: a width of {}", width);
    prefix.assign(static_cast<size_t>(width), ' ');
  }
  const bool first = arguments.FlagOr(2, false);
  const bool blank = arguments.FlagOr(3, false);
  const std::vector<std::string> lines = Split(text, "\n", -1);
  std::string out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    const bool indented = i == 0 ? first : (blank || !lines[i].empty());
    if (indented) out += prefix;
    out += lines[i];
    if (out.size() > ChatTemplate::kMaxOutputBytes) FailTooLong();
  }
  return BoundedText(host, std::move(out));
}

}  // namespace

Value ReplaceText(Host& host, const Arguments& arguments) {
  const std::string text =
      arguments.input().AsString() ? *arguments.input().AsString() : ToText(arguments.input());
  const std::string& from = arguments.Text(1);
  const std::string& to = arguments.Text(2);
  const bool counted = arguments.Has(3) && !arguments[3].Is<None>();
  const int64_t limit = counted ? arguments.Integer(3) : -1;
  // Compute the size of the result before building it.
  int64_t places = 0;
  if (from.empty()) {
    places = CodePointCount(text) + 1;
  } else {
    for (size_t at = text.find(from); at != std::string::npos;
         at = text.find(from, at + from.size())) {
      ++places;
    }
  }
  if (limit >= 0) places = std::min(places, limit);
  const auto max = static_cast<int64_t>(ChatTemplate::kMaxOutputBytes);
  if (places > 0 && static_cast<int64_t>(to.size()) > max / places) FailTooLong();
  return BoundedText(host, Replace(text, from, to, limit));
}

const std::vector<Builtin>& ValueFilters() {
  static const std::vector<Builtin> kFilters = {
      {"tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}, 0, ToJsonFilter},
      {"trim", {"chars"}, 0, Trim},
      {"length", {}, 0, LengthFilter},
      {"count", {}, 0, LengthFilter},
      {"upper", {}, 0, ChangeText<Upper>},
      {"lower", {}, 0, ChangeText<Lower>},
      {"capitalize", {}, 0, ChangeText<Capitalize>},
      {"title", {}, 0, ChangeText<TitleFilter>},
      {"default", {"default_value", "boolean"}, 0, Default},
      {"d", {"default_value", "boolean"}, 0, Default},
      {"string", {}, 0, StringFilter},
      {"safe", {}, 0, Safe},
      {"escape", {}, 0, ChangeText<HtmlEscape>},
      {"e", {}, 0, ChangeText<HtmlEscape>},
      {"int", {"default"}, 0, Int},
      {"float", {"default"}, 0, Float},
      {"abs", {}, 0, Abs},
      {"round", {"precision", "method"}, 0, Round},
      {"indent", {"width", "first", "blank"}, 0, Indent},
      {"replace", {"old", "new", "count"}, 2, ReplaceText},
  };
  return kFilters;
}

}  // namespace penstock::jinja
