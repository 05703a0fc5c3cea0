#include "model/template/jinja_interpreter.h"

#include <algorithm>

#include "model/template/jinja_operators.h"

namespace penstock::jinja {
namespace {

constexpr int kMaxWalkDepth = 400;  // expressions, blocks and macro calls together

}  // namespace

// One level of the walk over the tree.
class Interpreter::Descent {
 public:
  Descent(Interpreter& interpreter, int line) : interpreter_(interpreter) {
    interpreter_.line_ = line;
    interpreter_.Spend(1);
    if (++interpreter_.depth_ > kMaxWalkDepth) {
      --interpreter_.depth_;
      throw Error{"macros call each other too deeply", absl::StatusCode::kResourceExhausted};
    }
  }
  ~Descent() { --interpreter_.depth_; }
  Descent(const Descent&) = delete;
  Descent& operator=(const Descent&) = delete;

 private:
  Interpreter& interpreter_;
};

Interpreter::Interpreter(const Block& program, Dict variables, int64_t now_unix_s)
    : program_(program), variables_(std::move(variables)), now_unix_s_(now_unix_s) {}

std::string Interpreter::Run() {
  std::string output;
  output_ = &output;
  scopes_.emplace_back();
  try {
    RunBlock(program_);
  } catch (Error& error) {
    if (error.line == 0) error.line = line_;
    throw;
  }
  return output;
}

void Interpreter::Spend(int64_t steps) {
  steps_ += steps;
  if (steps_ > ChatTemplate::kMaxSteps) {
    throw Error{fmt::format("the template takes more than {} steps", ChatTemplate::kMaxSteps),
                absl::StatusCode::kResourceExhausted};
  }
}

void Interpreter::Emit(std::string_view text) {
  Spend(static_cast<int64_t>(text.size() / 64));
  if (output_->size() + text.size() > ChatTemplate::kMaxOutputBytes) {
    throw Error{fmt::format("the output passes {} bytes", ChatTemplate::kMaxOutputBytes),
                absl::StatusCode::kResourceExhausted};
  }
  output_->append(text);
}

Value Interpreter::Lookup(std::string_view name) const {
  const auto find = [&](const Scope& scope) -> const Value* {
    for (const auto& [key, value] : scope) {
      if (key == name) return &value;
    }
    return nullptr;
  };
  for (size_t i = scopes_.size(); i-- > macro_scope_;) {
    if (const Value* value = find(scopes_[i])) return *value;
  }
  if (const Value* value = find(scopes_[0])) return *value;
  if (const Value* value = variables_.Find(name)) return *value;
  const bool builtin = FindFunction(name) != nullptr || name == "namespace" || name == "dict";
  if (builtin) return Value::Of(Callable{});
  return MakeUndefined(name);
}

void Interpreter::Assign(std::string_view name, Value value) {
  Scope& scope = scopes_.back();
  for (auto& entry : scope) {
    if (entry.first == name) {
      entry.second = std::move(value);
      return;
    }
  }
  scope.emplace_back(name, std::move(value));
}

Interpreter::Flow Interpreter::RunBlock(const Block& block) {
  for (const auto& statement : block) {
    const Flow flow = RunStatement(*statement);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::RunStatement(const Statement& statement) {
  const Descent descent(*this, statement.line);
  return std::visit([&](const auto& node) { return Run(node); }, statement.node);
}

Interpreter::Flow Interpreter::Run(const TextStatement& statement) {
  Emit(statement.text);
  return Flow::kNext;
}

Interpreter::Flow Interpreter::Run(const PrintStatement& statement) {
  const Value value = Evaluate(*statement.value);
  if (const std::string* text = value.AsString()) {
    Emit(*text);
  } else {
    Emit(ToText(value));
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::Run(const IfStatement& statement) {
  for (const auto& [condition, body] : statement.branches) {
    if (Evaluate(*condition).Truthy()) return RunBlock(body);
  }
  return RunBlock(statement.otherwise);
}

void Interpreter::AssignTargets(const std::vector<std::string>& targets, const Value& value) {
  if (targets.size() == 1) return Assign(targets[0], value);
  const std::vector<Value> items = Iterate(*this, value);
  if (items.size() != targets.size()) {
    Fail("{} values for {} names", items.size(), targets.size());
  }
  for (size_t i = 0; i < targets.size(); ++i) Assign(targets[i], items[i]);
}

// Returns the items that pass the condition, which sees the targets but not yet `loop`.
std::vector<Value> Interpreter::LoopItems(const ForStatement& statement) {
  std::vector<Value> items = Iterate(*this, Evaluate(*statement.items));
  if (statement.condition == nullptr) return items;
  std::vector<Value> kept;
  for (Value& item : items) {
    scopes_.emplace_back();
    AssignTargets(statement.targets, item);
    if (Evaluate(*statement.condition).Truthy()) kept.push_back(std::move(item));
    scopes_.pop_back();
  }
  return kept;
}

Interpreter::Flow Interpreter::Run(const ForStatement& statement) {
  const Value items = MakeList(LoopItems(statement));
  const size_t count = items.AsList()->items.size();
  Loop& loop = loops_.emplace_back(Loop{std::get<ListRef>(items.data)});
  for (size_t i = 0; i < count; ++i) {
    Spend(1);
    loop.index = i;
    scopes_.emplace_back();
    AssignTargets(statement.targets, loop.items->items[i]);
    Assign("loop", Value::Of<const Loop*>(&loop));
    const Flow flow = RunBlock(statement.body);
    scopes_.pop_back();
    if (flow == Flow::kBreak) break;
  }
  loop.items = nullptr;
  if (count > 0) return Flow::kNext;
  scopes_.emplace_back();
  const Flow flow = RunBlock(statement.otherwise);
  scopes_.pop_back();
  return flow;
}

Interpreter::Flow Interpreter::Run(const SetStatement& statement) {
  Value value = Evaluate(*statement.value);
  if (statement.attribute.empty()) {
    AssignTargets(statement.targets, value);
    return Flow::kNext;
  }
  const Value target = Lookup(statement.targets[0]);
  if (!target.Is<Namespace*>()) Fail("'{}' is no namespace", statement.targets[0]);
  Namespace& space = *std::get<Namespace*>(target.data);
  Spend(static_cast<int64_t>(space.values.entries.size() / 8));
  SetEntry(space.values, statement.attribute, std::move(value));
  return Flow::kNext;
}

std::pair<std::string, Interpreter::Flow> Interpreter::Capture(const Block& block) {
  std::string text;
  std::string* const outer = std::exchange(output_, &text);
  scopes_.emplace_back();
  const Flow flow = RunBlock(block);
  scopes_.pop_back();
  output_ = outer;
  return {std::move(text), flow};
}

Interpreter::Flow Interpreter::Run(const SetBlockStatement& statement) {
  auto [text, flow] = Capture(statement.body);
  if (flow == Flow::kNext) Assign(statement.target, Value(std::move(text)));
  return flow;
}

Interpreter::Flow Interpreter::Run(const MacroStatement& statement) {
  Assign(statement.name, Value::Of<const MacroStatement*>(&statement));
  return Flow::kNext;
}

Value Interpreter::Evaluate(const Expression& expression) {
  const Descent descent(*this, expression.line);
  return std::visit([&](const auto& node) { return Evaluate(node); }, expression.node);
}

Value Interpreter::Evaluate(const ListLiteral& node) {
  std::vector<Value> items;
  items.reserve(node.items.size());
  for (const ExpressionRef& item : node.items) items.push_back(Evaluate(*item));
  return MakeList(std::move(items), node.tuple);
}

Value Interpreter::Evaluate(const DictLiteral& node) {
  Dict dict;
  for (const auto& [key, value] : node.entries) {
    const Value name = Evaluate(*key);
    if (name.AsString() == nullptr) Fail("a dict key of type {}", name.TypeName());
    Spend(static_cast<int64_t>(dict.entries.size() / 8));
    SetEntry(dict, *name.AsString(), Evaluate(*value));
  }
  return MakeDict(std::move(dict.entries));
}

Value Interpreter::Evaluate(const Sign& node) {
  const Value value = Evaluate(*node.operand);
  const Value negative = Negate(value);
  return node.negative ? negative : value;
}

Value Interpreter::Evaluate(const Binary& node) {
  const Value left = Evaluate(*node.left);
  return Apply(*this, node.op, left, Evaluate(*node.right));
}

Value Interpreter::Evaluate(const Logic& node) {
  Value left = Evaluate(*node.left);
  if (left.Truthy() != node.is_and) return left;
  return Evaluate(*node.right);
}

Value Interpreter::Evaluate(const Comparison& node) {
  Value left = Evaluate(*node.first);
  for (const auto& [op, expression] : node.rest) {
    Value right = Evaluate(*expression);
    if (!Holds(*this, op, left, right)) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Value Interpreter::Evaluate(const Concat& node) {
  std::string text;
  for (const ExpressionRef& part : node.parts) text += ToText(Evaluate(*part));
  return BoundedText(*this, std::move(text));
}

Value Interpreter::Evaluate(const Conditional& node) {
  if (Evaluate(*node.condition).Truthy()) return Evaluate(*node.then);
  return node.otherwise == nullptr ? Value() : Evaluate(*node.otherwise);
}

Value Interpreter::Evaluate(const Attribute& node) {
  return GetAttribute(Evaluate(*node.object), node.name);
}

Value Interpreter::Evaluate(const Subscript& node) {
  const Value object = Evaluate(*node.object);
  if (const std::string* text = object.AsString()) Spend(static_cast<int64_t>(text->size() / 64));
  return GetItem(object, Evaluate(*node.index));
}

Value Interpreter::Evaluate(const Slice& node) {
  const Value object = Evaluate(*node.object);
  const auto bound = [&](const ExpressionRef& part) {
    return part == nullptr ? Value::Of(None{}) : Evaluate(*part);
  };
  const Value start = bound(node.start);
  const Value stop = bound(node.stop);
  const Value step = bound(node.step);
  return TakeSlice(*this, object, {&start, &stop, &step});
}

Value Interpreter::CallBuiltin(const Builtin& builtin, const Expression* input,
                               const BoundArguments& arguments) {
  std::vector<std::optional<Value>> values;
  values.reserve(arguments.size() + 1);
  values.emplace_back(input == nullptr ? Value() : Evaluate(*input));
  for (const ExpressionRef& argument : arguments) {
    values.push_back(argument == nullptr ? std::nullopt : std::optional(Evaluate(*argument)));
  }
  // A builtin may copy its input a few times, so the size of the input is charged.
  if (const std::string* text = values[0]->AsString()) {
    Spend(static_cast<int64_t>(text->size() / 16));
  }
  return builtin.call(*this, Arguments(builtin.name, std::move(values)));
}

Value Interpreter::Evaluate(const FilterCall& node) {
  return CallBuiltin(*node.filter, node.input.get(), node.arguments);
}

Value Interpreter::Evaluate(const TestCall& node) {
  const Value result = CallBuiltin(*node.test, node.input.get(), node.arguments);
  return Value(result.Truthy() != node.negated);
}

Value Interpreter::Evaluate(const MethodCall& node) {
  return CallBuiltin(*node.method, node.object.get(), node.arguments);
}

Value Interpreter::Evaluate(const FunctionCall& node) {
  return CallBuiltin(*node.function, nullptr, node.arguments);
}

Value Interpreter::Evaluate(const KeywordCall& node) {
  Dict dict;
  if (node.base != nullptr) {
    const Value base = Evaluate(*node.base);
    if (base.AsDict() == nullptr) Fail("a value of type {} is no dict", base.TypeName());
    dict.entries = base.AsDict()->entries;
    Spend(static_cast<int64_t>(dict.entries.size()));
  }
  for (const auto& [name, value] : node.entries) SetEntry(dict, name, Evaluate(*value));
  if (!node.is_namespace) return MakeDict(std::move(dict.entries));
  return Value::Of(&namespaces_.emplace_back(Namespace{std::move(dict)}));
}

Interpreter::Scope Interpreter::BindMacro(const MacroStatement& macro, const MacroCall& call) {
  if (call.positional.size() > macro.parameters.size()) {
    Fail("macro '{}' takes at most {} arguments", macro.name, macro.parameters.size());
  }
  Scope scope;
  for (size_t i = 0; i < call.positional.size(); ++i) {
    scope.emplace_back(macro.parameters[i].name, Evaluate(*call.positional[i]));
  }
  for (const auto& argument : call.named) {
    const std::string& name = argument.first;
    const auto found = std::find_if(macro.parameters.begin(), macro.parameters.end(),
                                    [&](const auto& parameter) { return parameter.name == name; });
    if (found == macro.parameters.end()) {
      Fail("macro '{}' has no argument '{}'", macro.name, name);
    }
    scope.emplace_back(found->name, Evaluate(*argument.second));
  }
  return scope;
}

Value Interpreter::Evaluate(const MacroCall& node) {
  const Value callee = Lookup(node.name);
  if (!callee.Is<const MacroStatement*>()) Fail("'{}' is no macro here", node.name);
  const MacroStatement& macro = *std::get<const MacroStatement*>(callee.data);
  scopes_.push_back(BindMacro(macro, node));
  const size_t outer_macro_scope = std::exchange(macro_scope_, scopes_.size() - 1);
  for (const MacroParameter& parameter : macro.parameters) {
    const bool given =
        std::any_of(scopes_.back().begin(), scopes_.back().end(),
                    [&](const auto& entry) { return entry.first == parameter.name; });
    if (given) continue;
    Assign(parameter.name, parameter.standard == nullptr ? MakeUndefined(parameter.name)
                                                         : Evaluate(*parameter.standard));
  }
  std::string text = Capture(macro.body).first;
  macro_scope_ = outer_macro_scope;
  scopes_.pop_back();
  return Value(std::move(text));
}

}  // namespace penstock::jinja
