#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/template/jinja_value.h"

// The filters, tests, methods and functions that a template may use.

namespace penstock::jinja {

// The interpreter as a builtin sees it.
class Host {
 public:
  virtual ~Host() = default;
  // Accounts for work that grows with the input. Throws Error beyond the limit.
  virtual void Spend(int64_t steps) = 0;
  virtual int64_t now_unix_s() const = 0;
};

// The arguments of one call. values[0] is the value that a filter, test or method is applied to;
// the parameters follow, empty if omitted.
class Arguments {
 public:
  Arguments(std::string_view name, std::vector<std::optional<Value>> values)
      : name_(name), values_(std::move(values)) {}

  const Value& input() const { return *values_[0]; }
  bool Has(size_t index) const { return index < values_.size() && values_[index].has_value(); }
  const Value& operator[](size_t index) const { return *values_[index]; }
  // These throw Error with the builtin's name if the type is wrong.
  const std::string& Text(size_t index) const;
  int64_t Integer(size_t index) const;
  int64_t IntegerOr(size_t index, int64_t missing) const;
  bool FlagOr(size_t index, bool missing) const;
  std::optional<std::string> TextIfGiven(size_t index) const;  // None counts as omitted
  std::string_view name() const { return name_; }

 private:
  std::string_view name_;
  std::vector<std::optional<Value>> values_;
};

// A filter, test, method or function.
struct Builtin {
  std::string_view name;
  std::vector<std::string_view> parameters;  // after the input
  size_t required = 0;                       // number of parameters that must be given
  Value (*call)(Host&, const Arguments&) = nullptr;
  bool variadic = false;  // accepts more arguments than parameters
};

// These return null for an unknown name.
const Builtin* FindFilter(std::string_view name);
const Builtin* FindTest(std::string_view name);
const Builtin* FindMethod(std::string_view name);
const Builtin* FindFunction(std::string_view name);

// The elements of an iterable: a list, a dict (its keys), a string (its characters) or undefined
// (none). Throws Error for other types.
std::vector<Value> Iterate(Host& host, const Value& value);
// value.name of a dict, a namespace or a loop; undefined if there is none.
Value GetAttribute(const Value& value, std::string_view name);
bool Contains(Host& host, const Value& container, const Value& item);
int64_t Length(const Value& value);
// Returns a string that a template produced; throws Error if it is longer than the limit.
Value BoundedText(Host& host, std::string text);
[[noreturn]] void FailTooLong();
// Implements the filter and the method `replace`.
Value ReplaceText(Host& host, const Arguments& arguments);

}  // namespace penstock::jinja
