#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"
#include "model/template/chat_template.h"

namespace penstock::jinja {

// The exception inside the template engine; ChatTemplate turns it into a Status. `line` is 0 if the
// thrower does not know it.
struct Error {
  std::string message;
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
  int line = 0;
};

template <class... Args>
[[noreturn]] void Fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error{fmt::format(format, std::forward<Args>(args)...)};
}

struct MacroStatement;
struct List;
struct Dict;
struct Namespace;
struct Loop;

using StringRef = std::shared_ptr<const std::string>;

// The value of a name or attribute that does not exist.
struct Undefined {
  StringRef name;  // the missing name, for messages; may be null
};
// Python's None; JSON's null.
struct None {};
// A callable that is named without a call, such as `x.items`: templates can only test that it
// exists.
struct Callable {};

using ListRef = std::shared_ptr<const List>;
using DictRef = std::shared_ptr<const Dict>;

// A Jinja value with Python's semantics. Strings, lists and dicts are shared and immutable. Only
// namespaces change; namespaces and loops live as long as the interpreter that made them.
struct Value {
  using Data = std::variant<Undefined, None, bool, int64_t, double, StringRef, ListRef, DictRef,
                            Namespace*, const Loop*, const MacroStatement*, Callable>;
  Data data;

  Value() = default;
  explicit Value(bool flag) : data(flag) {}
  explicit Value(int64_t number) : data(number) {}
  explicit Value(double number) : data(number) {}
  explicit Value(std::string text) : data(std::make_shared<const std::string>(std::move(text))) {}
  explicit Value(const char*) = delete;  // would convert to bool
  template <class T>
  static Value Of(T held) {
    Value value;
    value.data = std::move(held);
    return value;
  }

  template <class T>
  bool Is() const {
    return std::holds_alternative<T>(data);
  }
  // The string, or null if the value has another type.
  const std::string* AsString() const;
  const List* AsList() const;
  const Dict* AsDict() const;
  // Integers; booleans count as 0 and 1, as in Python.
  bool AsInteger(int64_t& number) const;
  bool AsNumber(double& number) const;

  bool Truthy() const;
  std::string_view TypeName() const;  // Python's name of the type
  int Depth() const;                  // nesting of lists and dicts
};

inline constexpr int kMaxValueDepth = 100;

Value MakeUndefined(std::string_view name);
[[noreturn]] void FailUndefined(const Undefined& undefined);

// A list or a tuple; immutable once it is in a Value.
struct List {
  std::vector<Value> items;
  bool tuple = false;
  int depth = 1;
};

// A dict with string keys; immutable once it is in a Value.
struct Dict {
  std::vector<std::pair<std::string, Value>> entries;  // in order of insertion
  int depth = 1;

  const Value* Find(std::string_view key) const;
};

// The object of namespace(): the only mutable value.
struct Namespace {
  Dict values;
};

// The variable `loop` of a running for statement.
struct Loop {
  ListRef items;
  size_t index = 0;
};

// These throw Error if the nesting exceeds kMaxValueDepth, which bounds every recursion over
// values.
Value MakeList(std::vector<Value> items, bool tuple = false);
Value MakeDict(std::vector<std::pair<std::string, Value>> entries);
void SetEntry(Dict& dict, std::string_view key, Value value);
Value FromJson(const ChatJson& json);

bool Equal(const Value& left, const Value& right);
// Negative, 0 or positive. Throws Error for types that Python does not order.
int Compare(const Value& left, const Value& right);
std::string ToText(const Value& value);  // str()
std::string ToRepr(const Value& value);  // repr()

// The parameters of json.dumps().
struct JsonStyle {
  int indent = -1;  // -1: on one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool ensure_ascii = false;
  bool sort_keys = false;
};
std::string ToJson(const Value& value, const JsonStyle& style);  // json.dumps()

}  // namespace penstock::jinja
