#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/template/jinja_ast.h"

namespace penstock::jinja {

// Runs one template once by walking its tree, within ChatTemplate's limits. One thread; throws
// Error. The template must outlive it.
class Interpreter : public Host {
 public:
  // `variables` are the inputs of the template.
  Interpreter(const Block& program, Dict variables, int64_t now_unix_s);

  std::string Run();

  void Spend(int64_t steps) override;
  int64_t now_unix_s() const override { return now_unix_s_; }

 private:
  enum class Flow { kNext, kBreak, kContinue };
  using Scope = std::vector<std::pair<std::string_view, Value>>;
  class Descent;

  Flow RunBlock(const Block& block);
  Flow RunStatement(const Statement& statement);
  Flow Run(const TextStatement& statement);
  Flow Run(const PrintStatement& statement);
  Flow Run(const IfStatement& statement);
  Flow Run(const ForStatement& statement);
  Flow Run(const SetStatement& statement);
  Flow Run(const SetBlockStatement& statement);
  Flow Run(const MacroStatement& statement);
  Flow Run(const BreakStatement&) { return Flow::kBreak; }
  Flow Run(const ContinueStatement&) { return Flow::kContinue; }
  std::vector<Value> LoopItems(const ForStatement& statement);
  void AssignTargets(const std::vector<std::string>& targets, const Value& value);

  Value Evaluate(const Expression& expression);
  Value Evaluate(const Constant& node) { return node.value; }
  Value Evaluate(const Name& node) { return Lookup(node.name); }
  Value Evaluate(const ListLiteral& node);
  Value Evaluate(const DictLiteral& node);
  Value Evaluate(const Not& node) { return Value(!Evaluate(*node.operand).Truthy()); }
  Value Evaluate(const Sign& node);
  Value Evaluate(const Binary& node);
  Value Evaluate(const Logic& node);
  Value Evaluate(const Comparison& node);
  Value Evaluate(const Concat& node);
  Value Evaluate(const Conditional& node);
  Value Evaluate(const Attribute& node);
  Value Evaluate(const Subscript& node);
  Value Evaluate(const Slice& node);
  Value Evaluate(const FilterCall& node);
  Value Evaluate(const TestCall& node);
  Value Evaluate(const MethodCall& node);
  Value Evaluate(const FunctionCall& node);
  Value Evaluate(const KeywordCall& node);
  Value Evaluate(const MacroCall& node);
  Value CallBuiltin(const Builtin& builtin, const Expression* input,
                    const BoundArguments& arguments);
  Scope BindMacro(const MacroStatement& macro, const MacroCall& call);

  Value Lookup(std::string_view name) const;
  void Assign(std::string_view name, Value value);
  void Emit(std::string_view text);
  // Runs `block` and returns its output as a string.
  std::pair<std::string, Flow> Capture(const Block& block);

  const Block& program_;
  const Dict variables_;
  const int64_t now_unix_s_;
  std::deque<Scope> scopes_;  // the template's scope is first; inner scopes hide outer ones
  // A macro does not see its caller's scopes: those below this index, except the first.
  size_t macro_scope_ = 0;
  std::deque<Namespace> namespaces_;  // a deque, because values point into it
  std::deque<Loop> loops_;
  std::string* output_ = nullptr;
  int64_t steps_ = 0;
  int depth_ = 0;  // depth of the tree walk
  int line_ = 0;
};

}  // namespace penstock::jinja
