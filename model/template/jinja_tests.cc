// The tests of "x is y".
#include <algorithm>
#include <cmath>

#include "model/template/jinja_functions.h"
#include "model/template/jinja_operators.h"
#include "model/template/jinja_text.h"

namespace penstock::jinja {
namespace {

using Predicate = bool (*)(Host&, const Arguments&);

template <Predicate kPredicate>
Value Test(Host& host, const Arguments& arguments) {
  return Value(kPredicate(host, arguments));
}

template <class T>
bool IsType(Host&, const Arguments& arguments) {
  return arguments.input().Is<T>();
}

bool IsDefined(Host&, const Arguments& arguments) { return !arguments.input().Is<Undefined>(); }

bool IsNumber(Host&, const Arguments& arguments) {
  double number = 0;
  return arguments.input().AsNumber(number);
}

bool IsIterable(Host&, const Arguments& arguments) {
  const Value& value = arguments.input();
  return value.AsString() || value.AsList() || value.AsDict() || value.Is<Undefined>();
}

bool IsCallable(Host&, const Arguments& arguments) {
  const Value& value = arguments.input();
  return value.Is<Callable>() || value.Is<const MacroStatement*>();
}

bool IsTrue(Host&, const Arguments& arguments) {
  const bool* flag = std::get_if<bool>(&arguments.input().data);
  return flag != nullptr && *flag;
}

bool IsFalse(Host&, const Arguments& arguments) {
  const bool* flag = std::get_if<bool>(&arguments.input().data);
  return flag != nullptr && !*flag;
}

bool IsOdd(Host&, const Arguments& arguments) { return arguments.Integer(0) % 2 != 0; }
bool IsEven(Host&, const Arguments& arguments) { return arguments.Integer(0) % 2 == 0; }

bool IsDivisibleBy(Host& host, const Arguments& arguments) {
  const Value divisor(arguments.Integer(1));
  return !Apply(host, BinaryOp::kModulo, Value(arguments.Integer(0)), divisor).Truthy();
}

bool IsSameAs(Host&, const Arguments& arguments) {
  const Value& left = arguments.input();
  const Value& right = arguments[1];
  return left.data.index() == right.data.index() && Equal(left, right);
}

template <CompareOp kOp>
bool Compares(Host& host, const Arguments& arguments) {
  return Holds(host, kOp, arguments.input(), arguments[1]);
}

bool IsLower(Host&, const Arguments& arguments) {
  const std::string text = ToText(arguments.input());
  return text == Lower(text) && text != Upper(text);
}

bool IsUpper(Host&, const Arguments& arguments) {
  const std::string text = ToText(arguments.input());
  return text == Upper(text) && text != Lower(text);
}

const std::vector<Builtin>& Tests() {
  static const std::vector<Builtin> kTests = {
      {"defined", {}, 0, Test<IsDefined>},
      {"undefined", {}, 0, Test<IsType<Undefined>>},
      {"none", {}, 0, Test<IsType<None>>},
      {"string", {}, 0, Test<IsType<StringRef>>},
      {"boolean", {}, 0, Test<IsType<bool>>},
      {"integer", {}, 0, Test<IsType<int64_t>>},
      {"float", {}, 0, Test<IsType<double>>},
      {"mapping", {}, 0, Test<IsType<DictRef>>},
      {"number", {}, 0, Test<IsNumber>},
      {"iterable", {}, 0, Test<IsIterable>},
      {"sequence", {}, 0, Test<IsIterable>},
      {"callable", {}, 0, Test<IsCallable>},
      {"true", {}, 0, Test<IsTrue>},
      {"false", {}, 0, Test<IsFalse>},
      {"odd", {}, 0, Test<IsOdd>},
      {"even", {}, 0, Test<IsEven>},
      {"lower", {}, 0, Test<IsLower>},
      {"upper", {}, 0, Test<IsUpper>},
      {"divisibleby", {"num"}, 1, Test<IsDivisibleBy>},
      {"sameas", {"other"}, 1, Test<IsSameAs>},
      {"in", {"seq"}, 1, Test<Compares<CompareOp::kIn>>},
      {"eq", {"b"}, 1, Test<Compares<CompareOp::kEqual>>},
      {"==", {"b"}, 1, Test<Compares<CompareOp::kEqual>>},
      {"equalto", {"b"}, 1, Test<Compares<CompareOp::kEqual>>},
      {"ne", {"b"}, 1, Test<Compares<CompareOp::kNotEqual>>},
      {"!=", {"b"}, 1, Test<Compares<CompareOp::kNotEqual>>},
      {"lt", {"b"}, 1, Test<Compares<CompareOp::kLess>>},
      {"<", {"b"}, 1, Test<Compares<CompareOp::kLess>>},
      {"lessthan", {"b"}, 1, Test<Compares<CompareOp::kLess>>},
      {"le", {"b"}, 1, Test<Compares<CompareOp::kLessEqual>>},
      {"<=", {"b"}, 1, Test<Compares<CompareOp::kLessEqual>>},
      {"gt", {"b"}, 1, Test<Compares<CompareOp::kGreater>>},
      {">", {"b"}, 1, Test<Compares<CompareOp::kGreater>>},
      {"greaterthan", {"b"}, 1, Test<Compares<CompareOp::kGreater>>},
      {"ge", {"b"}, 1, Test<Compares<CompareOp::kGreaterEqual>>},
      {">=", {"b"}, 1, Test<Compares<CompareOp::kGreaterEqual>>},
  };
  return kTests;
}

}  // namespace

const Builtin* FindTest(std::string_view name) {
  for (const Builtin& test : Tests()) {
    if (test.name == name) return &test;
  }
  return nullptr;
}

}  // namespace penstock::jinja
