#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "model/template/jinja_ast.h"
#include "model/template/jinja_token_stream.h"

namespace penstock::jinja {

// Parses expressions by recursive descent, with Jinja's precedence. One thread; throws Error.
class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& tokens) : tokens_(tokens) {}

  ExpressionRef ParseExpression();  // includes "a if b else c"
  // Parses "a, b" as a tuple. Without `with_condition` an "if" ends the tuple, as in the head of a
  // for.
  ExpressionRef ParseTuple(bool with_condition = true);

  // Calls of names that are not functions, with their lines. The template parser checks them
  // against the macros at the end.
  const std::vector<std::pair<std::string, int>>& called_names() const { return called_names_; }

 private:
  template <class Node>
  ExpressionRef Make(int line, Node node, std::initializer_list<const Expression*> children);
  template <class Node>
  ExpressionRef MakeDeep(int line, Node node, int child_depth);

  ExpressionRef ParseOr();
  ExpressionRef ParseAnd();
  ExpressionRef ParseNot();
  ExpressionRef ParseComparison();
  ExpressionRef ParseSum();
  ExpressionRef ParseConcat();
  ExpressionRef ParseProduct();
  ExpressionRef ParsePower();
  ExpressionRef ParseUnary(bool with_filters = true);
  ExpressionRef ParsePrimary();
  ExpressionRef ParseName();
  ExpressionRef ParseParentheses();
  ExpressionRef ParseListLiteral();
  ExpressionRef ParseDictLiteral();
  ExpressionRef ParsePostfix(ExpressionRef expression);
  ExpressionRef ParseAttribute(ExpressionRef object);
  ExpressionRef ParseSubscript(ExpressionRef object);
  ExpressionRef ParseFiltersAndTests(ExpressionRef expression);
  ExpressionRef ParseFilter(ExpressionRef input);
  ExpressionRef ParseTest(ExpressionRef input);

  struct CallArguments {
    std::vector<ExpressionRef> positional;
    NamedExpressions named;
    int depth = 0;
  };
  CallArguments ParseArguments();
  BoundArguments Bind(const Builtin& builtin, std::string_view kind, CallArguments arguments,
                      int line);
  void CheckNameArguments(const Builtin& builtin, const BoundArguments& arguments, int line);
  ExpressionRef MakeCall(ExpressionRef callee, int line);
  ExpressionRef MakeNamedCall(const std::string& name, CallArguments arguments, int line);
  ExpressionRef MakeKeywordCall(bool is_namespace, CallArguments arguments, int line);

  TokenStream& tokens_;
  std::vector<std::pair<std::string, int>> called_names_;
  int nesting_ = 0;
};

}  // namespace penstock::jinja
