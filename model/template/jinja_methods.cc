// The methods of strings, dicts and loops.
#include <algorithm>

#include "model/template/jinja_functions.h"
#include "model/template/jinja_text.h"

namespace penstock::jinja {
namespace {

Value Texts(Host& host, std::vector<std::string> texts) {
  host.Spend(static_cast<int64_t>(texts.size()));
  std::vector<Value> items;
  items.reserve(texts.size());
  for (std::string& text : texts) items.emplace_back(std::move(text));
  return MakeList(std::move(items));
}

const Dict& DictOf(const Arguments& arguments) {
  const Value& value = arguments.input();
  if (value.Is<Undefined>()) FailUndefined(std::get<Undefined>(value.data));
  const Dict* dict = value.AsDict();
  if (dict == nullptr) Fail("a value of type {} has no {}()", value.TypeName(), arguments.name());
  return *dict;
}

template <Side kSide>
Value StripMethod(Host&, const Arguments& arguments) {
  return Value(std::string(Strip(arguments.Text(0), kSide, arguments.TextIfGiven(1))));
}

Value SplitMethod(Host& host, const Arguments& arguments) {
  const std::optional<std::string> separator = arguments.TextIfGiven(1);
  if (separator && separator->empty()) Fail("split(): an empty separator");
  return Texts(host, Split(arguments.Text(0), separator, arguments.IntegerOr(2, -1)));
}

Value RightSplitMethod(Host& host, const Arguments& arguments) {
  if (arguments.Text(1).empty()) Fail("rsplit(): an empty separator");
  return Texts(host,
               SplitFromRight(arguments.Text(0), arguments.Text(1), arguments.IntegerOr(2, -1)));
}

Value SplitLinesMethod(Host& host, const Arguments& arguments) {
  return Texts(host, SplitLines(arguments.Text(0)));
}

// startswith and endswith take one affix or a tuple of them, as in Python.
template <bool kAtStart>
Value HasAffix(Host&, const Arguments& arguments) {
  const std::string& text = arguments.Text(0);
  const auto matches = [&](const std::string& affix) {
    return kAtStart ? text.starts_with(affix) : text.ends_with(affix);
  };
  const List* affixes = arguments[1].AsList();
  if (affixes == nullptr) return Value(matches(arguments.Text(1)));
  return Value(std::any_of(affixes->items.begin(), affixes->items.end(), [&](const Value& affix) {
    return affix.AsString() != nullptr && matches(*affix.AsString());
  }));
}

template <std::string (*kChange)(std::string_view)>
Value ChangeSelf(Host&, const Arguments& arguments) {
  return Value(kChange(arguments.Text(0)));
}

Value Find(Host&, const Arguments& arguments) {
  const std::string& text = arguments.Text(0);
  const size_t found = text.find(arguments.Text(1));
  if (found == std::string::npos) return Value(int64_t{-1});
  return Value(CodePointCount(std::string_view(text).substr(0, found)));
}

Value Count(Host&, const Arguments& arguments) {
  const std::string& text = arguments.Text(0);
  const std::string& part = arguments.Text(1);
  if (part.empty()) return Value(CodePointCount(text) + 1);
  int64_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos;
       at = text.find(part, at + part.size())) {
    ++count;
  }
  return Value(count);
}

template <bool kPrefix>
Value RemoveAffix(Host&, const Arguments& arguments) {
  const std::string& text = arguments.Text(0);
  const std::string& affix = arguments.Text(1);
  const bool has = kPrefix ? text.starts_with(affix) : text.ends_with(affix);
  if (!has) return arguments.input();
  return Value(kPrefix ? text.substr(affix.size()) : text.substr(0, text.size() - affix.size()));
}

// Unlike the filter, the method works on strings only.
Value ReplaceMethod(Host& host, const Arguments& arguments) {
  arguments.Text(0);
  return ReplaceText(host, arguments);
}

Value JoinMethod(Host& host, const Arguments& arguments) {
  std::string out;
  bool first = true;
  for (const Value& item : Iterate(host, arguments[1])) {
    if (item.AsString() == nullptr) Fail("join(): an item of type {}", item.TypeName());
    if (!first) out += arguments.Text(0);
    out += *item.AsString();
    if (out.size() > ChatTemplate::kMaxOutputBytes) FailTooLong();
    first = false;
  }
  return BoundedText(host, std::move(out));
}

Value Get(Host&, const Arguments& arguments) {
  const Dict& dict = DictOf(arguments);
  const std::string* key = arguments[1].AsString();
  const Value* found = key == nullptr ? nullptr : dict.Find(*key);
  if (found != nullptr) return *found;
  return arguments.Has(2) ? arguments[2] : Value::Of(None{});
}

template <bool kKeys, bool kValues>
Value Entries(Host& host, const Arguments& arguments) {
  std::vector<Value> items;
  for (const auto& [key, value] : DictOf(arguments).entries) {
    host.Spend(1);
    if constexpr (kKeys && kValues) {
      items.push_back(MakeList({Value(key), value}, /*tuple=*/true));
    } else if constexpr (kKeys) {
      items.emplace_back(key);
    } else {
      items.push_back(value);
    }
  }
  return MakeList(std::move(items));
}

Value Cycle(Host&, const Arguments& arguments) {
  const auto* loop = std::get_if<const Loop*>(&arguments.input().data);
  if (loop == nullptr) Fail("a value of type {} has no cycle()", arguments.input().TypeName());
  size_t count = 0;
  while (arguments.Has(count + 1)) ++count;
  return arguments[1 + (*loop)->index % count];
}

const std::vector<Builtin>& Methods() {
  static const std::vector<Builtin> kMethods = {
      {"strip", {"chars"}, 0, StripMethod<Side::kBoth>},
      {"lstrip", {"chars"}, 0, StripMethod<Side::kLeft>},
      {"rstrip", {"chars"}, 0, StripMethod<Side::kRight>},
      {"split", {"sep", "maxsplit"}, 0, SplitMethod},
      {"rsplit", {"sep", "maxsplit"}, 1, RightSplitMethod},
      {"splitlines", {}, 0, SplitLinesMethod},
      {"startswith", {"prefix"}, 1, HasAffix<true>},
      {"endswith", {"suffix"}, 1, HasAffix<false>},
      {"upper", {}, 0, ChangeSelf<Upper>},
      {"lower", {}, 0, ChangeSelf<Lower>},
      {"title", {}, 0, ChangeSelf<TitleMethod>},
      {"capitalize", {}, 0, ChangeSelf<Capitalize>},
      {"replace", {"old", "new", "count"}, 2, ReplaceMethod},
      {"find", {"sub"}, 1, Find},
      {"count", {"sub"}, 1, Count},
      {"removeprefix", {"prefix"}, 1, RemoveAffix<true>},
      {"removesuffix", {"suffix"}, 1, RemoveAffix<false>},
      {"join", {"iterable"}, 1, JoinMethod},
      {"get", {"key", "default"}, 1, Get},
      {"items", {}, 0, Entries<true, true>},
      {"keys", {}, 0, Entries<true, false>},
      {"values", {}, 0, Entries<false, true>},
      {"cycle", {"first"}, 1, Cycle, /*variadic=*/true},
  };
  return kMethods;
}

}  // namespace

const Builtin* FindMethod(std::string_view name) {
  for (const Builtin& method : Methods()) {
    if (method.name == name) return &method;
  }
  return nullptr;
}

}  // namespace penstock::jinja
