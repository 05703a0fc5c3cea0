#include "model/template/jinja_functions.h"

#include <algorithm>
#include <ctime>

#include "base/utf8.h"
#include "model/template/jinja_text.h"

namespace penstock::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;

Value Range(Host& host, const Arguments& arguments) {
  const bool one = !arguments.Has(2);
  const int64_t start = one ? 0 : arguments.Integer(1);
  const int64_t stop = arguments.Integer(one ? 1 : 2);
  const int64_t step = arguments.IntegerOr(3, 1);
  if (step == 0) Fail("range() with a step of zero");
  std::vector<Value> items;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (static_cast<int64_t>(items.size()) >= kMaxRange) {
      Fail("range() of more than {} numbers", kMaxRange);
    }
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  host.Spend(static_cast<int64_t>(items.size()));
  return MakeList(std::move(items));
}

Value RaiseException(Host&, const Arguments& arguments) {
  // raise_exception: the message is for the caller, so it carries no line number.
  throw Error{ToText(arguments[1]), absl::StatusCode::kInvalidArgument, -1};
}

Value StrftimeNow(Host& host, const Arguments& arguments) {
  const std::string& format = arguments.Text(1);
  const std::time_t seconds = host.now_unix_s();
  std::tm parts{};
  if (gmtime_r(&seconds, &parts) == nullptr) Fail("strftime_now(): a time out of range");
  char buffer[256];
  const size_t length = std::strftime(buffer, sizeof(buffer), format.c_str(), &parts);
  if (length == 0 && !format.empty()) Fail("strftime_now() cannot format '{}'", format);
  return Value(std::string(buffer, length));
}

const std::vector<Builtin>& Functions() {
  static const std::vector<Builtin> kFunctions = {
      {"range", {"start", "stop", "step"}, 1, Range},
      {"raise_exception", {"message"}, 1, RaiseException},
      {"strftime_now", {"format"}, 1, StrftimeNow},
  };
  return kFunctions;
}

Value LoopAttribute(const Loop& loop, std::string_view name) {
  if (loop.items == nullptr) return MakeUndefined(name);  // the loop has ended
  const std::vector<Value>& items = loop.items->items;
  const auto index = static_cast<int64_t>(loop.index);
  const auto length = static_cast<int64_t>(items.size());
  if (name == "index") return Value(index + 1);
  if (name == "index0") return Value(index);
  if (name == "revindex") return Value(length - index);
  if (name == "revindex0") return Value(length - index - 1);
  if (name == "first") return Value(index == 0);
  if (name == "last") return Value(index + 1 == length);
  if (name == "length") return Value(length);
  if (name == "depth") return Value(int64_t{1});  // loop.depth counts recursive loops only
  if (name == "depth0") return Value(int64_t{0});
  if (name == "previtem" && index > 0) return items[loop.index - 1];
  if (name == "nextitem" && index + 1 < length) return items[loop.index + 1];
  return MakeUndefined(name);
}

}  // namespace

const std::string& Arguments::Text(size_t index) const {
  const Value& value = *values_[index];
  if (value.Is<Undefined>()) FailUndefined(std::get<Undefined>(value.data));
  const std::string* text = value.AsString();
  if (text == nullptr) Fail("{}: expected a str, found {}", name_, value.TypeName());
  return *text;
}

int64_t Arguments::Integer(size_t index) const {
  const Value& value = *values_[index];
  if (value.Is<Undefined>()) FailUndefined(std::get<Undefined>(value.data));
  int64_t number = 0;
  if (!value.AsInteger(number)) Fail("{}: expected an int, found {}", name_, value.TypeName());
  return number;
}

int64_t Arguments::IntegerOr(size_t index, int64_t missing) const {
  return Has(index) ? Integer(index) : missing;
}

bool Arguments::FlagOr(size_t index, bool missing) const {
  return Has(index) ? (*this)[index].Truthy() : missing;
}

std::optional<std::string> Arguments::TextIfGiven(size_t index) const {
  if (!Has(index) || (*this)[index].Is<None>()) return std::nullopt;
  return Text(index);
}

const Builtin* FindFunction(std::string_view name) {
  for (const Builtin& function : Functions()) {
    if (function.name == name) return &function;
  }
  return nullptr;
}

std::vector<Value> Iterate(Host& host, const Value& value) {
  std::vector<Value> items;
  if (const List* list = value.AsList()) {
    items = list->items;
  } else if (const Dict* dict = value.AsDict()) {
    for (const auto& entry : dict->entries) items.emplace_back(entry.first);
  } else if (const std::string* text = value.AsString()) {
    host.Spend(static_cast<int64_t>(text->size()));
    for (size_t at = 0; at < text->size(); at += Utf8Length((*text)[at])) {
      items.emplace_back(text->substr(at, Utf8Length((*text)[at])));
    }
  } else if (!value.Is<Undefined>()) {
    Fail("a value of type {} cannot be iterated", value.TypeName());
  }
  host.Spend(static_cast<int64_t>(items.size()));
  return items;
}

Value GetAttribute(const Value& value, std::string_view name) {
  if (const auto* undefined = std::get_if<Undefined>(&value.data)) FailUndefined(*undefined);
  if (const Dict* dict = value.AsDict()) {
    // As in Python, a dict's methods take precedence over its keys.
    static constexpr std::string_view kMethods[] = {"items", "keys",   "values", "get",
                                                    "copy",  "update", "pop",    "clear"};
    if (std::find(std::begin(kMethods), std::end(kMethods), name) != std::end(kMethods)) {
      return Value::Of(Callable{});
    }
    const Value* found = dict->Find(name);
    return found == nullptr ? MakeUndefined(name) : *found;
  }
  if (const auto* space = std::get_if<Namespace*>(&value.data)) {
    const Value* found = (*space)->values.Find(name);
    return found == nullptr ? MakeUndefined(name) : *found;
  }
  if (const auto* loop = std::get_if<const Loop*>(&value.data)) return LoopAttribute(**loop, name);
  if (value.AsString() && FindMethod(name) != nullptr) return Value::Of(Callable{});
  return MakeUndefined(name);
}

bool Contains(Host& host, const Value& container, const Value& item) {
  if (container.Is<Undefined>()) return false;
  if (const std::string* text = container.AsString()) {
    if (item.AsString() == nullptr) Fail("'in' a str needs a str, not {}", item.TypeName());
    host.Spend(static_cast<int64_t>(text->size() / 64));
    return text->find(*item.AsString()) != std::string::npos;
  }
  if (const Dict* dict = container.AsDict()) {
    host.Spend(static_cast<int64_t>(dict->entries.size() / 8));
    return item.AsString() != nullptr && dict->Find(*item.AsString()) != nullptr;
  }
  const List* list = container.AsList();
  if (list == nullptr) Fail("'in' does not work on {}", container.TypeName());
  host.Spend(static_cast<int64_t>(list->items.size()));
  return std::any_of(list->items.begin(), list->items.end(),
                     [&](const Value& element) { return Equal(element, item); });
}

int64_t Length(const Value& value) {
  if (value.Is<Undefined>()) return 0;
  if (const std::string* text = value.AsString()) return CodePointCount(*text);
  if (const List* list = value.AsList()) return static_cast<int64_t>(list->items.size());
  if (const Dict* dict = value.AsDict()) return static_cast<int64_t>(dict->entries.size());
  Fail("a value of type {} has no length", value.TypeName());
}

void FailTooLong() {
  throw Error{fmt::format("a string passes {} bytes", ChatTemplate::kMaxOutputBytes),
              absl::StatusCode::kResourceExhausted};
}

Value BoundedText(Host& host, std::string text) {
  host.Spend(static_cast<int64_t>(text.size() / 64));
  if (text.size() > ChatTemplate::kMaxOutputBytes) FailTooLong();
  return Value(std::move(text));
}

}  // namespace penstock::jinja
