#include "model/template/jinja_operators.h"

#include <algorithm>
#include <cmath>

#include "base/utf8.h"
#include "model/template/jinja_text.h"

namespace penstock::jinja {
namespace {

[[noreturn]] void FailTypes(std::string_view op, const Value& left, const Value& right) {
  for (const Value* value : {&left, &right}) {
    if (value->Is<Undefined>()) FailUndefined(std::get<Undefined>(value->data));
  }
  Fail("operator {} does not work on {} and {}", op, left.TypeName(), right.TypeName());
}

// Takes a reference, because `result` is written while the arguments are evaluated.
int64_t Checked(bool overflow, const int64_t& result) {
  if (overflow) Fail("an integer passes 64 bits");
  return result;
}

int64_t FloorDivide(int64_t left, int64_t right) {
  if (right == 0) Fail("division by zero");
  if (right == -1) {
    int64_t result = 0;
    return Checked(__builtin_sub_overflow(int64_t{0}, left, &result), result);
  }
  const int64_t quotient = left / right;
  return left % right != 0 && (left < 0) != (right < 0) ? quotient - 1 : quotient;
}

int64_t Modulo(int64_t left, int64_t right) {
  if (right == 0) Fail("division by zero");
  if (right == -1) return 0;
  const int64_t rest = left % right;
  return rest != 0 && (rest < 0) != (right < 0) ? rest + right : rest;
}

Value Power(int64_t base, int64_t exponent) {
  if (exponent < 0)
    return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  int64_t result = 1;
  if (base == 0 || base == 1) return Value(exponent == 0 ? int64_t{1} : base);
  if (base == -1) return Value(exponent % 2 == 0 ? int64_t{1} : int64_t{-1});
  for (; exponent > 0; --exponent) {  // at most 63 rounds before an overflow
    Checked(__builtin_mul_overflow(result, base, &result), 0);
  }
  return Value(result);
}

Value ApplyIntegers(BinaryOp op, int64_t left, int64_t right) {
  int64_t result = 0;
  switch (op) {
    case BinaryOp::kAdd:
      return Value(Checked(__builtin_add_overflow(left, right, &result), result));
    case BinaryOp::kSubtract:
      return Value(Checked(__builtin_sub_overflow(left, right, &result), result));
    case BinaryOp::kMultiply: {
      const bool overflow = __builtin_mul_overflow(left, right, &result);
      return Value(Checked(overflow, result));
    }
    case BinaryOp::kDivide:
      if (right == 0) Fail("division by zero");
      return Value(static_cast<double>(left) / static_cast<double>(right));
    case BinaryOp::kFloorDivide:
      return Value(FloorDivide(left, right));
    case BinaryOp::kModulo:
      return Value(Modulo(left, right));
    case BinaryOp::kPower:
      return Power(left, right);
  }
  return Value();
}

Value ApplyNumbers(BinaryOp op, double left, double right) {
  const bool divides =
      op == BinaryOp::kDivide || op == BinaryOp::kFloorDivide || op == BinaryOp::kModulo;
  if (divides && right == 0) Fail("division by zero");
  switch (op) {
    case BinaryOp::kAdd:
      return Value(left + right);
    case BinaryOp::kSubtract:
      return Value(left - right);
    case BinaryOp::kMultiply:
      return Value(left * right);
    case BinaryOp::kDivide:
      return Value(left / right);
    case BinaryOp::kFloorDivide:
      return Value(std::floor(left / right));
    case BinaryOp::kModulo:
      return Value(left - right * std::floor(left / right));
    case BinaryOp::kPower:
      return Value(std::pow(left, right));
  }
  return Value();
}

Value Repeat(Host& host, const Value& value, int64_t times) {
  times = std::max<int64_t>(times, 0);
  if (const std::string* text = value.AsString()) {
    if (!text->empty() &&
        times > static_cast<int64_t>(ChatTemplate::kMaxOutputBytes / text->size())) {
      FailTooLong();
    }
    std::string out;
    for (int64_t i = 0; i < times; ++i) out += *text;
    return Value(std::move(out));
  }
  const List& list = *value.AsList();
  std::vector<Value> items;
  for (int64_t i = 0; i < times && !list.items.empty(); ++i) {
    host.Spend(static_cast<int64_t>(list.items.size()));
    items.insert(items.end(), list.items.begin(), list.items.end());
  }
  return MakeList(std::move(items), list.tuple);
}

Value AddLists(Host& host, const List& left, const List& right) {
  host.Spend(static_cast<int64_t>(left.items.size() + right.items.size()));
  std::vector<Value> items = left.items;
  items.insert(items.end(), right.items.begin(), right.items.end());
  return MakeList(std::move(items), left.tuple);
}

constexpr std::string_view kSymbols[] = {"+", "-", "*", "/", "//", "%", "**"};

}  // namespace

Value Apply(Host& host, BinaryOp op, const Value& left, const Value& right) {
  int64_t left_integer = 0;
  int64_t right_integer = 0;
  const bool left_counts = left.AsInteger(left_integer);
  const bool right_counts = right.AsInteger(right_integer);
  if (left_counts && right_counts) return ApplyIntegers(op, left_integer, right_integer);
  double left_number = 0;
  double right_number = 0;
  if (left.AsNumber(left_number) && right.AsNumber(right_number)) {
    return ApplyNumbers(op, left_number, right_number);
  }
  if (op == BinaryOp::kAdd && left.AsString() && right.AsString()) {
    return BoundedText(host, *left.AsString() + *right.AsString());
  }
  if (op == BinaryOp::kAdd && left.AsList() && right.AsList() &&
      left.AsList()->tuple == right.AsList()->tuple) {
    return AddLists(host, *left.AsList(), *right.AsList());
  }
  const auto repeats = [](const Value& value) { return value.AsString() || value.AsList(); };
  if (op == BinaryOp::kMultiply && repeats(left) && right_counts) {
    return Repeat(host, left, right_integer);
  }
  if (op == BinaryOp::kMultiply && repeats(right) && left_counts) {
    return Repeat(host, right, left_integer);
  }
  FailTypes(kSymbols[static_cast<size_t>(op)], left, right);
}

bool Holds(Host& host, CompareOp op, const Value& left, const Value& right) {
  switch (op) {
    case CompareOp::kEqual:
      return Equal(left, right);
    case CompareOp::kNotEqual:
      return !Equal(left, right);
    case CompareOp::kIn:
      return Contains(host, right, left);
    case CompareOp::kNotIn:
      return !Contains(host, right, left);
    default:
      break;
  }
  if (left.Is<Undefined>() || right.Is<Undefined>()) FailTypes("<", left, right);
  double left_number = 0;
  double right_number = 0;
  if (left.AsNumber(left_number) && right.AsNumber(right_number) &&
      (std::isnan(left_number) || std::isnan(right_number))) {
    return false;
  }
  const int order = Compare(left, right);
  switch (op) {
    case CompareOp::kLess:
      return order < 0;
    case CompareOp::kLessEqual:
      return order <= 0;
    case CompareOp::kGreater:
      return order > 0;
    default:
      return order >= 0;
  }
}

Value Negate(const Value& value) {
  int64_t integer = 0;
  if (value.AsInteger(integer)) {
    int64_t result = 0;
    return Value(Checked(__builtin_sub_overflow(int64_t{0}, integer, &result), result));
  }
  double number = 0;
  if (!value.AsNumber(number)) Fail("a value of type {} has no sign", value.TypeName());
  return Value(-number);
}

namespace {

struct Range {
  int64_t start = 0;
  int64_t stop = 0;
  int64_t step = 1;
};

bool GivenBound(const Value* bound, int64_t& number) {
  if (bound == nullptr || bound->Is<None>()) return false;
  if (!bound->AsInteger(number)) Fail("a slice bound is of type {}", bound->TypeName());
  return true;
}

// Python's slice.indices().
Range Resolve(const SliceBounds& bounds, int64_t length) {
  Range range;
  if (GivenBound(bounds.step, range.step) && range.step == 0) Fail("a slice step of zero");
  range.step = std::clamp(range.step, -length - 1, length + 1);
  const int64_t lowest = range.step > 0 ? 0 : -1;
  const int64_t highest = range.step > 0 ? length : length - 1;
  const auto place = [&](const Value* bound, int64_t missing) {
    int64_t at = 0;
    if (!GivenBound(bound, at)) return missing;
    if (at < 0) at = at < -length ? lowest : at + length;
    return std::clamp(at, lowest, highest);
  };
  range.start = place(bounds.start, range.step > 0 ? lowest : highest);
  range.stop = place(bounds.stop, range.step > 0 ? highest : lowest);
  return range;
}

template <class Visit>
void ForEachIndex(const Range& range, const Visit& visit) {
  for (int64_t i = range.start; range.step > 0 ? i < range.stop : i > range.stop; i += range.step) {
    visit(static_cast<size_t>(i));
  }
}

Value SliceText(Host& host, const std::string& text, const SliceBounds& bounds) {
  host.Spend(static_cast<int64_t>(text.size() / 64));
  const Range range = Resolve(bounds, CodePointCount(text));
  if (range.step == 1) {
    const size_t begin = ByteOffset(text, range.start);
    const size_t length = ByteOffset(std::string_view(text).substr(begin),
                                     std::max<int64_t>(range.stop - range.start, 0));
    return Value(text.substr(begin, length));
  }
  std::vector<std::string_view> characters;
  host.Spend(static_cast<int64_t>(text.size()));
  for (size_t at = 0; at < text.size(); at += Utf8Length(text[at])) {
    characters.push_back(std::string_view(text).substr(at, Utf8Length(text[at])));
  }
  std::string out;
  ForEachIndex(range, [&](size_t i) { out += characters[i]; });
  return Value(std::move(out));
}

}  // namespace

Value TakeSlice(Host& host, const Value& object, const SliceBounds& bounds) {
  if (const std::string* text = object.AsString()) return SliceText(host, *text, bounds);
  const List* list = object.AsList();
  if (list == nullptr) {
    if (object.Is<Undefined>()) FailUndefined(std::get<Undefined>(object.data));
    Fail("a value of type {} cannot be sliced", object.TypeName());
  }
  std::vector<Value> items;
  ForEachIndex(Resolve(bounds, static_cast<int64_t>(list->items.size())),
               [&](size_t i) { items.push_back(list->items[i]); });
  host.Spend(static_cast<int64_t>(items.size()));
  return MakeList(std::move(items), list->tuple);
}

Value GetItem(const Value& object, const Value& index) {
  if (object.Is<Undefined>()) FailUndefined(std::get<Undefined>(object.data));
  if (const std::string* key = index.AsString()) {
    if (const Dict* dict = object.AsDict()) {
      const Value* found = dict->Find(*key);
      if (found != nullptr) return *found;
    }
    return GetAttribute(object, *key);
  }
  int64_t at = 0;
  if (!index.AsInteger(at)) return MakeUndefined("item");
  if (const List* list = object.AsList()) {
    const auto size = static_cast<int64_t>(list->items.size());
    if (at < 0) at += size;
    if (at >= 0 && at < size) return list->items[static_cast<size_t>(at)];
  } else if (const std::string* text = object.AsString()) {
    const int64_t size = CodePointCount(*text);
    if (at < 0) at += size;
    if (at >= 0 && at < size) {
      const size_t begin = ByteOffset(*text, at);
      return Value(text->substr(begin, Utf8Length((*text)[begin])));
    }
  }
  return MakeUndefined(fmt::format("item {}", at));
}

}  // namespace penstock::jinja
