#include "model/template/jinja_expression_parser.h"

#include <algorithm>
#include <charconv>

namespace penstock::jinja {
namespace {

// Counts one level of recursion during its lifetime.
class Level {
 public:
  Level(int& nesting, const TokenStream& tokens) : nesting_(nesting) {
    if (++nesting_ > ChatTemplate::kMaxNesting) {
      --nesting_;
      tokens.FailHere(fmt::format("nested deeper than {}", ChatTemplate::kMaxNesting));
    }
  }
  ~Level() { --nesting_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  int& nesting_;
};

int DepthOf(const ExpressionRef& expression) { return expression ? expression->depth : 0; }

int DepthOf(const std::vector<ExpressionRef>& expressions) {
  int depth = 0;
  for (const ExpressionRef& expression : expressions) depth = std::max(depth, DepthOf(expression));
  return depth;
}

}  // namespace

// Left-associative chains (a + b + c) need no recursion to parse, but recursion to evaluate, so
// their depth is limited too.
template <class Node>
ExpressionRef ExpressionParser::MakeDeep(int line, Node node, int child_depth) {
  if (child_depth >= ChatTemplate::kMaxNesting) {
    TokenStream::FailAt(line, fmt::format("nested deeper than {}", ChatTemplate::kMaxNesting));
  }
  return std::make_unique<const Expression>(
      Expression{Expression::Node(std::move(node)), line, child_depth + 1});
}

template <class Node>
ExpressionRef ExpressionParser::Make(int line, Node node,
                                     std::initializer_list<const Expression*> children) {
  int depth = 0;
  for (const Expression* child : children) {
    if (child != nullptr) depth = std::max(depth, child->depth);
  }
  return MakeDeep(line, std::move(node), depth);
}

ExpressionRef ExpressionParser::ParseTuple(bool with_condition) {
  const int line = tokens_.line();
  const auto parse = [&] { return with_condition ? ParseExpression() : ParseOr(); };
  ExpressionRef first = parse();
  if (!tokens_.IsOperator(",")) return first;
  std::vector<ExpressionRef> items;
  items.push_back(std::move(first));
  while (tokens_.SkipOperator(",")) {
    const bool ends = tokens_.Is(TokenKind::kPrintEnd) || tokens_.Is(TokenKind::kBlockEnd) ||
                      tokens_.IsOperator(")");
    if (ends) break;
    items.push_back(parse());
  }
  const int depth = DepthOf(items);
  return MakeDeep(line, ListLiteral{std::move(items), /*tuple=*/true}, depth);
}

ExpressionRef ExpressionParser::ParseExpression() {
  const Level level(nesting_, tokens_);
  const int line = tokens_.line();
  ExpressionRef then = ParseOr();
  while (tokens_.SkipName("if")) {
    ExpressionRef condition = ParseOr();
    ExpressionRef otherwise = tokens_.SkipName("else") ? ParseExpression() : nullptr;
    const auto children = {condition.get(), then.get(), otherwise.get()};
    then = Make(line, Conditional{std::move(condition), std::move(then), std::move(otherwise)},
                children);
  }
  return then;
}

ExpressionRef ExpressionParser::ParseOr() {
  const int line = tokens_.line();
  ExpressionRef left = ParseAnd();
  while (tokens_.SkipName("or")) {
    ExpressionRef right = ParseAnd();
    const auto children = {left.get(), right.get()};
    left = Make(line, Logic{false, std::move(left), std::move(right)}, children);
  }
  return left;
}

ExpressionRef ExpressionParser::ParseAnd() {
  const int line = tokens_.line();
  ExpressionRef left = ParseNot();
  while (tokens_.SkipName("and")) {
    ExpressionRef right = ParseNot();
    const auto children = {left.get(), right.get()};
    left = Make(line, Logic{true, std::move(left), std::move(right)}, children);
  }
  return left;
}

ExpressionRef ExpressionParser::ParseNot() {
  if (!tokens_.IsName("not")) return ParseComparison();
  const Level level(nesting_, tokens_);
  const int line = tokens_.Next().line;
  ExpressionRef operand = ParseNot();
  const auto children = {operand.get()};
  return Make(line, Not{std::move(operand)}, children);
}

ExpressionRef ExpressionParser::ParseComparison() {
  const int line = tokens_.line();
  Comparison comparison{ParseSum(), {}};
  int depth = comparison.first->depth;
  static constexpr std::pair<std::string_view, CompareOp> kOps[] = {
      {"==", CompareOp::kEqual},        {"!=", CompareOp::kNotEqual}, {"<=", CompareOp::kLessEqual},
      {">=", CompareOp::kGreaterEqual}, {"<", CompareOp::kLess},      {">", CompareOp::kGreater}};
  const auto next_op = [&]() -> std::optional<CompareOp> {
    for (const auto& [text, op] : kOps) {
      if (tokens_.SkipOperator(text)) return op;
    }
    if (tokens_.SkipName("in")) return CompareOp::kIn;
    const bool not_in = tokens_.IsName("not") && tokens_.ahead().kind == TokenKind::kName &&
                        tokens_.ahead().text == "in";
    if (!not_in) return std::nullopt;
    tokens_.Next();
    tokens_.Next();
    return CompareOp::kNotIn;
  };
  while (const std::optional<CompareOp> op = next_op()) {
    comparison.rest.emplace_back(*op, ParseSum());
    depth = std::max(depth, comparison.rest.back().second->depth);
  }
  if (comparison.rest.empty()) return std::move(comparison.first);
  return MakeDeep(line, std::move(comparison), depth);
}

ExpressionRef ExpressionParser::ParseSum() {
  const int line = tokens_.line();
  ExpressionRef left = ParseConcat();
  while (tokens_.IsOperator("+") || tokens_.IsOperator("-")) {
    const BinaryOp op = tokens_.Next().text == "+" ? BinaryOp::kAdd : BinaryOp::kSubtract;
    ExpressionRef right = ParseConcat();
    const auto children = {left.get(), right.get()};
    left = Make(line, Binary{op, std::move(left), std::move(right)}, children);
  }
  return left;
}

ExpressionRef ExpressionParser::ParseConcat() {
  const int line = tokens_.line();
  std::vector<ExpressionRef> parts;
  parts.push_back(ParseProduct());
  while (tokens_.SkipOperator("~")) parts.push_back(ParseProduct());
  if (parts.size() == 1) return std::move(parts[0]);
  const int depth = DepthOf(parts);
  return MakeDeep(line, Concat{std::move(parts)}, depth);
}

ExpressionRef ExpressionParser::ParseProduct() {
  static constexpr std::pair<std::string_view, BinaryOp> kOps[] = {{"*", BinaryOp::kMultiply},
                                                                   {"//", BinaryOp::kFloorDivide},
                                                                   {"/", BinaryOp::kDivide},
                                                                   {"%", BinaryOp::kModulo}};
  const int line = tokens_.line();
  ExpressionRef left = ParsePower();
  while (true) {
    const auto found = std::find_if(std::begin(kOps), std::end(kOps),
                                    [&](const auto& op) { return tokens_.IsOperator(op.first); });
    if (found == std::end(kOps)) return left;
    tokens_.Next();
    ExpressionRef right = ParsePower();
    const auto children = {left.get(), right.get()};
    left = Make(line, Binary{found->second, std::move(left), std::move(right)}, children);
  }
}

ExpressionRef ExpressionParser::ParsePower() {
  const int line = tokens_.line();
  ExpressionRef left = ParseUnary();
  while (tokens_.SkipOperator("**")) {
    ExpressionRef right = ParseUnary();
    const auto children = {left.get(), right.get()};
    left = Make(line, Binary{BinaryOp::kPower, std::move(left), std::move(right)}, children);
  }
  return left;
}

ExpressionRef ExpressionParser::ParseUnary(bool with_filters) {
  const Level level(nesting_, tokens_);
  const int line = tokens_.line();
  ExpressionRef expression;
  if (tokens_.IsOperator("-") || tokens_.IsOperator("+")) {
    const bool negative = tokens_.Next().text == "-";
    ExpressionRef operand = ParseUnary(/*with_filters=*/false);
    const auto children = {operand.get()};
    expression = Make(line, Sign{std::move(operand), negative}, children);
  } else {
    expression = ParsePrimary();
  }
  expression = ParsePostfix(std::move(expression));
  return with_filters ? ParseFiltersAndTests(std::move(expression)) : std::move(expression);
}

ExpressionRef ExpressionParser::ParsePrimary() {
  const Token token = tokens_.current();
  switch (token.kind) {
    case TokenKind::kName:
      return ParseName();
    case TokenKind::kString: {
      std::string text;
      while (tokens_.Is(TokenKind::kString)) text += tokens_.Next().text;
      return MakeDeep(token.line, Constant{Value(std::move(text))}, 0);
    }
    case TokenKind::kInteger: {
      int64_t number = 0;
      const auto [end, error] =
          std::from_chars(token.text.data(), token.text.data() + token.text.size(), number);
      if (error != std::errc()) tokens_.FailHere(fmt::format("{} is too large", token.text));
      tokens_.Next();
      return MakeDeep(token.line, Constant{Value(number)}, 0);
    }
    case TokenKind::kFloat: {
      tokens_.Next();
      return MakeDeep(token.line, Constant{Value(std::strtod(token.text.c_str(), nullptr))}, 0);
    }
    default:
      break;
  }
  if (tokens_.SkipOperator("(")) return ParseParentheses();
  if (tokens_.SkipOperator("[")) return ParseListLiteral();
  if (tokens_.SkipOperator("{")) return ParseDictLiteral();
  tokens_.FailHere(fmt::format("unexpected {}", tokens_.Shown()));
}

ExpressionRef ExpressionParser::ParseName() {
  const Token token = tokens_.Next();
  const std::string& name = token.text;
  if (name == "true" || name == "True" || name == "false" || name == "False") {
    return MakeDeep(token.line, Constant{Value(name[0] == 't' || name[0] == 'T')}, 0);
  }
  if (name == "none" || name == "None") {
    return MakeDeep(token.line, Constant{Value::Of(None{})}, 0);
  }
  return MakeDeep(token.line, Name{name}, 0);
}

ExpressionRef ExpressionParser::ParseParentheses() {
  const int line = tokens_.line();
  if (tokens_.SkipOperator(")")) return MakeDeep(line, ListLiteral{{}, /*tuple=*/true}, 0);
  ExpressionRef inner = ParseTuple();
  tokens_.ExpectOperator(")");
  return inner;
}

ExpressionRef ExpressionParser::ParseListLiteral() {
  const int line = tokens_.line();
  std::vector<ExpressionRef> items;
  while (!tokens_.IsOperator("]")) {
    items.push_back(ParseExpression());
    if (!tokens_.SkipOperator(",")) break;
  }
  tokens_.ExpectOperator("]");
  const int depth = DepthOf(items);
  return MakeDeep(line, ListLiteral{std::move(items)}, depth);
}

ExpressionRef ExpressionParser::ParseDictLiteral() {
  const int line = tokens_.line();
  DictLiteral dict;
  int depth = 0;
  while (!tokens_.IsOperator("}")) {
    ExpressionRef key = ParseExpression();
    tokens_.ExpectOperator(":");
    ExpressionRef value = ParseExpression();
    depth = std::max({depth, key->depth, value->depth});
    dict.entries.emplace_back(std::move(key), std::move(value));
    if (!tokens_.SkipOperator(",")) break;
  }
  tokens_.ExpectOperator("}");
  return MakeDeep(line, std::move(dict), depth);
}

ExpressionRef ExpressionParser::ParsePostfix(ExpressionRef expression) {
  while (true) {
    const int line = tokens_.line();
    if (tokens_.SkipOperator(".")) {
      expression = ParseAttribute(std::move(expression));
    } else if (tokens_.SkipOperator("[")) {
      expression = ParseSubscript(std::move(expression));
    } else if (tokens_.IsOperator("(")) {
      expression = MakeCall(std::move(expression), line);
    } else {
      return expression;
    }
  }
}

ExpressionRef ExpressionParser::ParseAttribute(ExpressionRef object) {
  const int line = tokens_.line();
  const int depth = object->depth;
  if (tokens_.Is(TokenKind::kInteger)) {  // items.0
    ExpressionRef index = ParsePrimary();
    return MakeDeep(line, Subscript{std::move(object), std::move(index)}, depth);
  }
  std::string name = tokens_.ExpectAnyName();
  if (!tokens_.IsOperator("(")) {
    return MakeDeep(line, Attribute{std::move(object), std::move(name)}, depth);
  }
  const Builtin* method = FindMethod(name);
  if (method == nullptr) {
    TokenStream::FailAt(line, fmt::format("method '{}' is not supported", name));
  }
  CallArguments arguments = ParseArguments();
  const int deepest = std::max(depth, arguments.depth);
  BoundArguments bound = Bind(*method, "method", std::move(arguments), line);
  return MakeDeep(line, MethodCall{method, std::move(object), std::move(bound)}, deepest);
}

ExpressionRef ExpressionParser::ParseSubscript(ExpressionRef object) {
  const int line = tokens_.line();
  ExpressionRef parts[3];
  int colons = 0;
  while (!tokens_.IsOperator("]")) {
    if (tokens_.SkipOperator(":")) {
      if (++colons > 2) tokens_.FailHere("a slice has at most three parts");
    } else if (parts[colons] == nullptr) {
      parts[colons] = ParseExpression();
    } else {
      break;
    }
  }
  tokens_.ExpectOperator("]");
  const auto children = {object.get(), parts[0].get(), parts[1].get(), parts[2].get()};
  if (colons > 0) {
    return Make(
        line,
        Slice{std::move(object), std::move(parts[0]), std::move(parts[1]), std::move(parts[2])},
        children);
  }
  if (parts[0] == nullptr) TokenStream::FailAt(line, "an empty subscript");
  return Make(line, Subscript{std::move(object), std::move(parts[0])}, children);
}

ExpressionRef ExpressionParser::ParseFiltersAndTests(ExpressionRef expression) {
  while (true) {
    const int line = tokens_.line();
    if (tokens_.SkipOperator("|")) {
      expression = ParseFilter(std::move(expression));
    } else if (tokens_.SkipName("is")) {
      expression = ParseTest(std::move(expression));
    } else if (tokens_.IsOperator("(")) {
      expression = MakeCall(std::move(expression), line);
    } else {
      return expression;
    }
  }
}

ExpressionRef ExpressionParser::ParseFilter(ExpressionRef input) {
  const int line = tokens_.line();
  const std::string name = tokens_.ExpectAnyName();
  const Builtin* filter = FindFilter(name);
  if (filter == nullptr) {
    TokenStream::FailAt(line, fmt::format("filter '{}' is not supported", name));
  }
  CallArguments arguments;
  if (tokens_.IsOperator("(")) arguments = ParseArguments();
  const int depth = std::max(input->depth, arguments.depth);
  BoundArguments bound = Bind(*filter, "filter", std::move(arguments), line);
  return MakeDeep(line, FilterCall{filter, std::move(input), std::move(bound)}, depth);
}

ExpressionRef ExpressionParser::ParseTest(ExpressionRef input) {
  const bool negated = tokens_.SkipName("not");
  const int line = tokens_.line();
  const std::string name = tokens_.ExpectAnyName();
  const Builtin* test = FindTest(name);
  if (test == nullptr) TokenStream::FailAt(line, fmt::format("test '{}' is not supported", name));
  CallArguments arguments;
  const bool takes_bare_argument = !test->parameters.empty() && !tokens_.Is(TokenKind::kOperator) &&
                                   !tokens_.IsName("else") && !tokens_.IsName("or") &&
                                   !tokens_.IsName("and") && !tokens_.IsName("is");
  if (tokens_.IsOperator("(")) {
    arguments = ParseArguments();
  } else if (takes_bare_argument || (!test->parameters.empty() && tokens_.IsOperator("["))) {
    arguments.positional.push_back(ParsePostfix(ParsePrimary()));  // "is divisibleby 3"
    arguments.depth = DepthOf(arguments.positional);
  }
  const int depth = std::max(input->depth, arguments.depth);
  BoundArguments bound = Bind(*test, "test", std::move(arguments), line);
  return MakeDeep(line, TestCall{test, std::move(input), std::move(bound), negated}, depth);
}

ExpressionParser::CallArguments ExpressionParser::ParseArguments() {
  CallArguments arguments;
  tokens_.ExpectOperator("(");
  while (!tokens_.IsOperator(")")) {
    if (tokens_.IsOperator("*") || tokens_.IsOperator("**")) {
      tokens_.FailHere("arguments with * are not supported");
    }
    const bool named = tokens_.Is(TokenKind::kName) &&
                       tokens_.ahead().kind == TokenKind::kOperator && tokens_.ahead().text == "=";
    std::string name;
    if (named) {
      name = tokens_.Next().text;
      tokens_.Next();
    } else if (!arguments.named.empty()) {
      tokens_.FailHere("a positional argument after a named one");
    }
    ExpressionRef value = ParseExpression();
    arguments.depth = std::max(arguments.depth, value->depth);
    if (named) {
      arguments.named.emplace_back(std::move(name), std::move(value));
    } else {
      arguments.positional.push_back(std::move(value));
    }
    if (!tokens_.SkipOperator(",")) break;
  }
  tokens_.ExpectOperator(")");
  return arguments;
}

BoundArguments ExpressionParser::Bind(const Builtin& builtin, std::string_view kind,
                                      CallArguments arguments, int line) {
  const auto& parameters = builtin.parameters;
  if (arguments.positional.size() > parameters.size() && !builtin.variadic) {
    TokenStream::FailAt(line, fmt::format("{} '{}' takes at most {} arguments", kind, builtin.name,
                                          parameters.size()));
  }
  BoundArguments bound = std::move(arguments.positional);
  if (bound.size() < parameters.size()) bound.resize(parameters.size());
  for (auto& [name, value] : arguments.named) {
    const auto found = std::find(parameters.begin(), parameters.end(), name);
    if (found == parameters.end()) {
      TokenStream::FailAt(
          line, fmt::format("{} '{}' has no argument '{}' here", kind, builtin.name, name));
    }
    bound[static_cast<size_t>(found - parameters.begin())] = std::move(value);
  }
  for (size_t i = 0; i < builtin.required; ++i) {
    if (bound[i] != nullptr) continue;
    TokenStream::FailAt(line, fmt::format("{} '{}' needs '{}'", kind, builtin.name, parameters[i]));
  }
  CheckNameArguments(builtin, bound, line);
  return bound;
}

// map("upper") and select("string") name a filter or a test, which must exist.
void ExpressionParser::CheckNameArguments(const Builtin& builtin, const BoundArguments& arguments,
                                          int line) {
  for (size_t i = 0; i < builtin.parameters.size(); ++i) {
    const std::string_view parameter = builtin.parameters[i];
    if ((parameter != "filter" && parameter != "test") || arguments[i] == nullptr) continue;
    const auto* constant = std::get_if<Constant>(&arguments[i]->node);
    const std::string* name = constant == nullptr ? nullptr : constant->value.AsString();
    if (name == nullptr) {
      TokenStream::FailAt(line, fmt::format("'{}' supports only the name of a {} in quotes",
                                            builtin.name, parameter));
    }
    const Builtin* found = parameter == "filter" ? FindFilter(*name) : FindTest(*name);
    if (found != nullptr) continue;
    TokenStream::FailAt(line, fmt::format("{} '{}' is not supported", parameter, *name));
  }
}

ExpressionRef ExpressionParser::MakeCall(ExpressionRef callee, int line) {
  const auto* name = std::get_if<Name>(&callee->node);
  if (name == nullptr) TokenStream::FailAt(line, "only names and methods can be called");
  return MakeNamedCall(name->name, ParseArguments(), line);
}

ExpressionRef ExpressionParser::MakeNamedCall(const std::string& name, CallArguments arguments,
                                              int line) {
  if (name == "namespace" || name == "dict") {
    return MakeKeywordCall(name == "namespace", std::move(arguments), line);
  }
  const int depth = arguments.depth;
  if (const Builtin* function = FindFunction(name)) {
    BoundArguments bound = Bind(*function, "function", std::move(arguments), line);
    return MakeDeep(line, FunctionCall{function, std::move(bound)}, depth);
  }
  called_names_.emplace_back(name, line);
  return MakeDeep(
      line, MacroCall{name, std::move(arguments.positional), std::move(arguments.named)}, depth);
}

ExpressionRef ExpressionParser::MakeKeywordCall(bool is_namespace, CallArguments arguments,
                                                int line) {
  if (arguments.positional.size() > 1) {
    TokenStream::FailAt(line, "namespace() and dict() take one positional argument at most");
  }
  KeywordCall call{is_namespace, nullptr, std::move(arguments.named)};
  if (!arguments.positional.empty()) call.base = std::move(arguments.positional[0]);
  return MakeDeep(line, std::move(call), arguments.depth);
}

}  // namespace penstock::jinja
