#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "model/template/jinja_functions.h"
#include "model/template/jinja_value.h"

// The syntax tree of a parsed template. Built-in names are already resolved: every construct in a
// tree is supported by the interpreter.

namespace penstock::jinja {

struct Expression;
using ExpressionRef = std::unique_ptr<const Expression>;
using NamedExpressions = std::vector<std::pair<std::string, ExpressionRef>>;

enum class BinaryOp { kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower };
enum class CompareOp { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };

struct Constant {
  Value value;
};
struct Name {
  std::string name;
};
struct ListLiteral {
  std::vector<ExpressionRef> items;
  bool tuple = false;
};
struct DictLiteral {
  std::vector<std::pair<ExpressionRef, ExpressionRef>> entries;
};
struct Not {
  ExpressionRef operand;
};
struct Sign {
  ExpressionRef operand;
  bool negative = false;
};
struct Binary {
  BinaryOp op;
  ExpressionRef left, right;
};
struct Logic {
  bool is_and = false;
  ExpressionRef left, right;
};
struct Comparison {
  ExpressionRef first;
  std::vector<std::pair<CompareOp, ExpressionRef>> rest;  // a < b < c
};
struct Concat {
  std::vector<ExpressionRef> parts;
};
struct Conditional {
  ExpressionRef condition, then, otherwise;  // otherwise may be null
};
struct Attribute {
  ExpressionRef object;
  std::string name;
};
struct Subscript {
  ExpressionRef object, index;
};
struct Slice {
  ExpressionRef object, start, stop, step;  // each bound may be null
};
// Arguments in the order of a builtin's parameters; null if omitted.
using BoundArguments = std::vector<ExpressionRef>;
struct FilterCall {
  const Builtin* filter;
  ExpressionRef input;
  BoundArguments arguments;
};
struct TestCall {
  const Builtin* test;
  ExpressionRef input;
  BoundArguments arguments;
  bool negated = false;
};
struct MethodCall {
  const Builtin* method;
  ExpressionRef object;
  BoundArguments arguments;
};
struct FunctionCall {
  const Builtin* function;
  BoundArguments arguments;
};
// The calls namespace(a=1) and dict(a=1).
struct KeywordCall {
  bool is_namespace = false;
  ExpressionRef base;  // a dict to start from, or null
  NamedExpressions entries;
};
struct MacroCall {
  std::string name;
  std::vector<ExpressionRef> positional;
  NamedExpressions named;
};

struct Expression {
  using Node = std::variant<Constant, Name, ListLiteral, DictLiteral, Not, Sign, Binary, Logic,
                            Comparison, Concat, Conditional, Attribute, Subscript, Slice,
                            FilterCall, TestCall, MethodCall, FunctionCall, KeywordCall, MacroCall>;
  Node node;
  int line = 0;
  int depth = 1;  // depth of the subtree
};

struct Statement;
using Block = std::vector<std::unique_ptr<const Statement>>;

struct TextStatement {
  std::string text;
};
struct PrintStatement {
  ExpressionRef value;
};
struct IfStatement {
  std::vector<std::pair<ExpressionRef, Block>> branches;
  Block otherwise;
};
struct ForStatement {
  std::vector<std::string> targets;  // with more than one, each item is unpacked
  ExpressionRef items;
  ExpressionRef condition;  // null: all items
  Block body;
  Block otherwise;  // runs if there are no items
};
struct SetStatement {
  std::vector<std::string> targets;
  std::string attribute;  // of the single target, a namespace; empty: assigns the variable
  ExpressionRef value;
};
struct SetBlockStatement {
  std::string target;
  Block body;
};
struct MacroParameter {
  std::string name;
  ExpressionRef standard;  // its default, or null
};
struct MacroStatement {
  std::string name;
  std::vector<MacroParameter> parameters;
  Block body;
};
struct BreakStatement {};
struct ContinueStatement {};

struct Statement {
  using Node = std::variant<TextStatement, PrintStatement, IfStatement, ForStatement, SetStatement,
                            SetBlockStatement, MacroStatement, BreakStatement, ContinueStatement>;
  Node node;
  int line = 0;
};

}  // namespace penstock::jinja
