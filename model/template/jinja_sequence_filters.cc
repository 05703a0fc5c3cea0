// The filters that work on sequences.
#include <algorithm>

#include "model/template/jinja_filter_tables.h"
#include "model/template/jinja_operators.h"
#include "model/template/jinja_text.h"

namespace penstock::jinja {
namespace {

// Resolves "a.b.0" from a value: the form of filters' attribute arguments.
Value AttributePath(const Value& value, const Value& path) {
  if (path.AsString() == nullptr) return GetItem(value, path);
  Value at = value;
  for (const std::string& part : Split(*path.AsString(), ".", -1)) {
    const bool number =
        !part.empty() && part.size() < 10 &&
        std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    at = GetItem(at, number ? Value(static_cast<int64_t>(std::stoll(part))) : Value(part));
  }
  return at;
}

Value ListFilter(Host& host, const Arguments& arguments) {
  return MakeList(Iterate(host, arguments.input()));
}

Value Items(Host& host, const Arguments& arguments) {
  if (arguments.input().Is<Undefined>()) return MakeList({});
  const Dict* dict = arguments.input().AsDict();
  if (dict == nullptr) Fail("items: a value of type {}", arguments.input().TypeName());
  std::vector<Value> items;
  for (const auto& [key, value] : dict->entries) {
    host.Spend(1);
    items.push_back(MakeList({Value(key), value}, /*tuple=*/true));
  }
  return MakeList(std::move(items));
}

Value DictSort(Host& host, const Arguments& arguments) {
  const Value entries = Items(host, arguments);
  std::vector<Value> items = entries.AsList()->items;
  const auto folded = [](const Value& item) { return Lower(*item.AsList()->items[0].AsString()); };
  std::stable_sort(items.begin(), items.end(), [&](const Value& left, const Value& right) {
    return folded(left) < folded(right);
  });
  return MakeList(std::move(items));
}

Value Join(Host& host, const Arguments& arguments) {
  const std::string separator = arguments.Has(1) ? ToText(arguments[1]) : "";
  std::string out;
  bool first = true;
  for (const Value& item : Iterate(host, arguments.input())) {
    if (!first) out += separator;
    out += ToText(arguments.Has(2) ? AttributePath(item, arguments[2]) : item);
    if (out.size() > ChatTemplate::kMaxOutputBytes) FailTooLong();
    first = false;
  }
  return BoundedText(host, std::move(out));
}

Value First(Host& host, const Arguments& arguments) {
  const std::vector<Value> items = Iterate(host, arguments.input());
  return items.empty() ? MakeUndefined("first") : items.front();
}

Value Last(Host& host, const Arguments& arguments) {
  const std::vector<Value> items = Iterate(host, arguments.input());
  return items.empty() ? MakeUndefined("last") : items.back();
}

Value Reverse(Host& host, const Arguments& arguments) {
  std::vector<Value> items = Iterate(host, arguments.input());
  std::reverse(items.begin(), items.end());
  if (arguments.input().AsString() == nullptr) return MakeList(std::move(items));
  std::string text;
  for (const Value& item : items) text += *item.AsString();
  return Value(std::move(text));
}

// The value that sort, unique, min and max compare: case is ignored unless `sensitive`.
Value SortKey(const Value& item, const Arguments& arguments, size_t attribute, bool sensitive) {
  const bool has_attribute = arguments.Has(attribute) && !arguments[attribute].Is<None>();
  const Value key = has_attribute ? AttributePath(item, arguments[attribute]) : item;
  return !sensitive && key.AsString() ? Value(Lower(*key.AsString())) : key;
}

Value Sort(Host& host, const Arguments& arguments) {
  std::vector<std::pair<Value, Value>> keyed;
  const bool sensitive = arguments.FlagOr(2, false);
  for (Value& item : Iterate(host, arguments.input())) {
    Value key = SortKey(item, arguments, 3, sensitive);
    keyed.emplace_back(std::move(key), std::move(item));
  }
  host.Spend(static_cast<int64_t>(keyed.size()) * 8);
  const bool descending = arguments.FlagOr(1, false);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& left, const auto& right) {
    const int order = Compare(left.first, right.first);
    return descending ? order > 0 : order < 0;
  });
  std::vector<Value> items;
  for (auto& entry : keyed) items.push_back(std::move(entry.second));
  return MakeList(std::move(items));
}

Value Unique(Host& host, const Arguments& arguments) {
  const bool sensitive = arguments.FlagOr(1, false);
  std::vector<Value> keys;
  std::vector<Value> items;
  for (Value& item : Iterate(host, arguments.input())) {
    Value key = SortKey(item, arguments, 2, sensitive);
    host.Spend(static_cast<int64_t>(keys.size()));
    const bool seen = std::any_of(keys.begin(), keys.end(),
                                  [&](const Value& other) { return Equal(key, other); });
    if (seen) continue;
    keys.push_back(std::move(key));
    items.push_back(std::move(item));
  }
  return MakeList(std::move(items));
}

template <bool kMax>
Value Extreme(Host& host, const Arguments& arguments) {
  const bool sensitive = arguments.FlagOr(1, false);
  Value best = MakeUndefined(arguments.name());
  Value best_key;
  bool first = true;
  for (Value& item : Iterate(host, arguments.input())) {
    Value key = SortKey(item, arguments, 2, sensitive);
    if (!first) {
      const int order = Compare(key, best_key);
      if (kMax ? order <= 0 : order >= 0) continue;
    }
    first = false;
    best = std::move(item);
    best_key = std::move(key);
  }
  return best;
}

Value Sum(Host& host, const Arguments& arguments) {
  Value sum = arguments.Has(2) ? arguments[2] : Value(int64_t{0});
  for (const Value& item : Iterate(host, arguments.input())) {
    const bool has_attribute = arguments.Has(1) && !arguments[1].Is<None>();
    sum =
        Apply(host, BinaryOp::kAdd, sum, has_attribute ? AttributePath(item, arguments[1]) : item);
  }
  return sum;
}

bool Passes(Host& host, const Value& value, const Arguments& arguments, size_t test_index) {
  if (!arguments.Has(test_index)) return value.Truthy();
  const Builtin& test = *FindTest(arguments.Text(test_index));
  if (test.required > 0 && !arguments.Has(test_index + 1)) {
    Fail("{}: test '{}' needs an argument", arguments.name(), test.name);
  }
  std::vector<std::optional<Value>> values = {value};
  if (arguments.Has(test_index + 1)) values.emplace_back(arguments[test_index + 1]);
  return test.call(host, Arguments(test.name, std::move(values))).Truthy();
}

template <bool kKeep>
Value Select(Host& host, const Arguments& arguments) {
  std::vector<Value> items;
  for (Value& item : Iterate(host, arguments.input())) {
    if (Passes(host, item, arguments, 1) == kKeep) items.push_back(std::move(item));
  }
  return MakeList(std::move(items));
}

template <bool kKeep>
Value SelectAttribute(Host& host, const Arguments& arguments) {
  std::vector<Value> items;
  for (Value& item : Iterate(host, arguments.input())) {
    const Value attribute = AttributePath(item, arguments[1]);
    if (Passes(host, attribute, arguments, 2) == kKeep) items.push_back(std::move(item));
  }
  return MakeList(std::move(items));
}

// Implements map("upper"), map("replace", "a", "b") and map(attribute="name", default="").
Value Map(Host& host, const Arguments& arguments) {
  constexpr size_t kFilter = 1, kAttribute = 4, kDefault = 5;
  std::vector<Value> items;
  for (Value& item : Iterate(host, arguments.input())) {
    if (arguments.Has(kAttribute)) {
      Value attribute = AttributePath(item, arguments[kAttribute]);
      const bool missing = attribute.Is<Undefined>() && arguments.Has(kDefault);
      if (missing) attribute = arguments[kDefault];
      items.push_back(std::move(attribute));
      continue;
    }
    if (!arguments.Has(kFilter)) Fail("map: neither a filter nor an attribute");
    const Builtin& filter = *FindFilter(arguments.Text(kFilter));
    std::vector<std::optional<Value>> values = {std::move(item)};
    for (size_t i = kFilter + 1; i < kAttribute; ++i) {
      if (arguments.Has(i)) values.emplace_back(arguments[i]);
    }
    if (values.size() - 1 < filter.required || values.size() - 1 > filter.parameters.size()) {
      Fail("map: filter '{}' takes other arguments", filter.name);
    }
    items.push_back(filter.call(host, Arguments(filter.name, std::move(values))));
  }
  return MakeList(std::move(items));
}

}  // namespace

const std::vector<Builtin>& SequenceFilters() {
  static const std::vector<Builtin> kFilters = {
      {"list", {}, 0, ListFilter},
      {"items", {}, 0, Items},
      {"dictsort", {}, 0, DictSort},
      {"join", {"d", "attribute"}, 0, Join},
      {"first", {}, 0, First},
      {"last", {}, 0, Last},
      {"reverse", {}, 0, Reverse},
      {"sort", {"reverse", "case_sensitive", "attribute"}, 0, Sort},
      {"unique", {"case_sensitive", "attribute"}, 0, Unique},
      {"min", {"case_sensitive", "attribute"}, 0, Extreme<false>},
      {"max", {"case_sensitive", "attribute"}, 0, Extreme<true>},
      {"sum", {"attribute", "start"}, 0, Sum},
      {"select", {"test", "argument"}, 0, Select<true>},
      {"reject", {"test", "argument"}, 0, Select<false>},
      {"selectattr", {"attribute", "test", "argument"}, 1, SelectAttribute<true>},
      {"rejectattr", {"attribute", "test", "argument"}, 1, SelectAttribute<false>},
      {"map", {"filter", "argument", "argument2", "attribute", "default"}, 0, Map},
  };
  return kFilters;
}

const Builtin* FindFilter(std::string_view name) {
  for (const std::vector<Builtin>* table : {&ValueFilters(), &SequenceFilters()}) {
    for (const Builtin& filter : *table) {
      if (filter.name == name) return &filter;
    }
  }
  return nullptr;
}

}  // namespace penstock::jinja
