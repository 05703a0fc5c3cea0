#include "model/template/jinja_value.h"

#include <algorithm>
#include <cmath>

#include "base/utf8.h"

namespace penstock::jinja {
namespace {

int CheckedDepth(int deepest_child) {
  if (deepest_child >= kMaxValueDepth) Fail("values are nested deeper than {}", kMaxValueDepth);
  return deepest_child + 1;
}

bool EqualLists(const List& left, const List& right) {
  return left.tuple == right.tuple && std::equal(left.items.begin(), left.items.end(),
                                                 right.items.begin(), right.items.end(), Equal);
}

bool EqualDicts(const Dict& left, const Dict& right) {
  if (left.entries.size() != right.entries.size()) return false;
  return std::all_of(left.entries.begin(), left.entries.end(), [&](const auto& entry) {
    const Value* other = right.Find(entry.first);
    return other != nullptr && Equal(entry.second, *other);
  });
}

template <class T>
int Order(const T& left, const T& right) {
  return left < right ? -1 : right < left ? 1 : 0;
}

int CompareLists(const List& left, const List& right) {
  for (size_t i = 0; i < std::min(left.items.size(), right.items.size()); ++i) {
    if (!Equal(left.items[i], right.items[i])) return Compare(left.items[i], right.items[i]);
  }
  return Order(left.items.size(), right.items.size());
}

}  // namespace

const std::string* Value::AsString() const {
  const auto* text = std::get_if<StringRef>(&data);
  return text == nullptr ? nullptr : text->get();
}

const List* Value::AsList() const {
  const auto* list = std::get_if<ListRef>(&data);
  return list == nullptr ? nullptr : list->get();
}

const Dict* Value::AsDict() const {
  const auto* dict = std::get_if<DictRef>(&data);
  return dict == nullptr ? nullptr : dict->get();
}

bool Value::AsInteger(int64_t& number) const {
  if (const auto* integer = std::get_if<int64_t>(&data)) {
    number = *integer;
    return true;
  }
  const auto* flag = std::get_if<bool>(&data);
  if (flag != nullptr) number = *flag ? 1 : 0;
  return flag != nullptr;
}

bool Value::AsNumber(double& number) const {
  if (const auto* real = std::get_if<double>(&data)) {
    number = *real;
    return true;
  }
  int64_t integer = 0;
  if (!AsInteger(integer)) return false;
  number = static_cast<double>(integer);
  return true;
}

bool Value::Truthy() const {
  if (Is<Undefined>() || Is<None>()) return false;
  if (const std::string* text = AsString()) return !text->empty();
  if (const List* list = AsList()) return !list->items.empty();
  if (const Dict* dict = AsDict()) return !dict->entries.empty();
  double number = 1;
  AsNumber(number);
  return number != 0;
}

std::string_view Value::TypeName() const {
  static constexpr std::string_view kNames[] = {"undefined", "None", "bool",  "int",
                                                "float",     "str",  "list",  "dict",
                                                "namespace", "loop", "macro", "callable"};
  if (const List* list = AsList(); list != nullptr && list->tuple) return "tuple";
  return kNames[data.index()];
}

int Value::Depth() const {
  if (const List* list = AsList()) return list->depth;
  if (const Dict* dict = AsDict()) return dict->depth;
  return 0;
}

const Value* Dict::Find(std::string_view key) const {
  for (const auto& [name, value] : entries) {
    if (name == key) return &value;
  }
  return nullptr;
}

Value MakeUndefined(std::string_view name) {
  return Value::Of(Undefined{std::make_shared<const std::string>(name)});
}

void FailUndefined(const Undefined& undefined) {
  if (undefined.name == nullptr) Fail("a value is undefined");
  Fail("'{}' is undefined", *undefined.name);
}

Value MakeList(std::vector<Value> items, bool tuple) {
  int deepest = 0;
  for (const Value& item : items) deepest = std::max(deepest, item.Depth());
  List list{std::move(items), tuple, CheckedDepth(deepest)};
  return Value::Of(std::make_shared<const List>(std::move(list)));
}

Value MakeDict(std::vector<std::pair<std::string, Value>> entries) {
  int deepest = 0;
  for (const auto& entry : entries) deepest = std::max(deepest, entry.second.Depth());
  Dict dict{std::move(entries), CheckedDepth(deepest)};
  return Value::Of(std::make_shared<const Dict>(std::move(dict)));
}

void SetEntry(Dict& dict, std::string_view key, Value value) {
  for (auto& entry : dict.entries) {
    if (entry.first == key) {
      entry.second = std::move(value);
      return;
    }
  }
  dict.entries.emplace_back(std::string(key), std::move(value));
}

namespace {

Value FromText(const std::string& text) {
  const size_t invalid = FirstInvalidUtf8(text);
  if (invalid != std::string::npos) {
    Fail("a string of the input is not valid UTF-8 at byte {} of {}", invalid, text.size());
  }
  return Value(text);
}

Value FromJsonAt(const ChatJson& json, int depth) {
  if (depth > kMaxValueDepth) Fail("the input is nested deeper than {}", kMaxValueDepth);
  if (json.is_boolean()) return Value(json.get<bool>());
  if (json.is_string()) return FromText(json.get_ref<const std::string&>());
  if (json.is_number_unsigned() && json.get<uint64_t>() > INT64_MAX) {
    return Value(json.get<double>());
  }
  if (json.is_number_integer()) return Value(json.get<int64_t>());
  if (json.is_number()) return Value(json.get<double>());
  if (json.is_array()) {
    std::vector<Value> items;
    items.reserve(json.size());
    for (const ChatJson& item : json) items.push_back(FromJsonAt(item, depth + 1));
    return MakeList(std::move(items));
  }
  if (json.is_object()) {
    std::vector<std::pair<std::string, Value>> entries;
    for (const auto& [key, item] : json.items()) {
      entries.emplace_back(*FromText(key).AsString(), FromJsonAt(item, depth + 1));
    }
    return MakeDict(std::move(entries));
  }
  return Value::Of(None{});
}

}  // namespace

Value FromJson(const ChatJson& json) { return FromJsonAt(json, 0); }

bool Equal(const Value& left, const Value& right) {
  double left_number = 0;
  double right_number = 0;
  if (left.AsNumber(left_number) && right.AsNumber(right_number)) {
    int64_t left_integer = 0;
    int64_t right_integer = 0;
    if (left.AsInteger(left_integer) && right.AsInteger(right_integer)) {
      return left_integer == right_integer;
    }
    return left_number == right_number;
  }
  if (left.data.index() != right.data.index()) return false;
  if (const std::string* text = left.AsString()) return *text == *right.AsString();
  if (const List* list = left.AsList()) return EqualLists(*list, *right.AsList());
  if (const Dict* dict = left.AsDict()) return EqualDicts(*dict, *right.AsDict());
  if (const auto* space = std::get_if<Namespace*>(&left.data)) {
    return *space == std::get<Namespace*>(right.data);
  }
  return left.Is<None>() || left.Is<Undefined>();
}

int Compare(const Value& left, const Value& right) {
  int64_t left_integer = 0;
  int64_t right_integer = 0;
  if (left.AsInteger(left_integer) && right.AsInteger(right_integer)) {
    return Order(left_integer, right_integer);
  }
  double left_number = 0;
  double right_number = 0;
  if (left.AsNumber(left_number) && right.AsNumber(right_number)) {
    return Order(left_number, right_number);
  }
  // The order of UTF-8 bytes is the order of code points.
  if (left.AsString() && right.AsString()) return Order(*left.AsString(), *right.AsString());
  if (left.AsList() && right.AsList()) return CompareLists(*left.AsList(), *right.AsList());
  Fail("{} and {} have no order", left.TypeName(), right.TypeName());
}

}  // namespace penstock::jinja
