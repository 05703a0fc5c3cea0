#include "model/template/jinja_parser.h"

#include <algorithm>
#include <set>

#include "model/template/jinja_expression_parser.h"

namespace penstock::jinja {
namespace {

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(Lex(source)), expressions_(tokens_) {}

  Block Run() {
    Block block = ParseBlock({});
    for (const auto& [name, line] : expressions_.called_names()) {
      if (!macros_.contains(name)) {
        TokenStream::FailAt(line, fmt::format("function '{}' is not supported", name));
      }
    }
    return block;
  }

 private:
  using Ends = std::initializer_list<std::string_view>;

  template <class Node>
  static std::unique_ptr<const Statement> Make(int line, Node node) {
    return std::make_unique<const Statement>(Statement{Statement::Node(std::move(node)), line});
  }

  // Parses statements up to a tag that begins with one of `ends`, whose name is then the current
  // token; without `ends`, up to the end of the template.
  Block ParseBlock(Ends ends) {
    if (++nesting_ > ChatTemplate::kMaxNesting) {
      tokens_.FailHere(fmt::format("blocks are nested deeper than {}", ChatTemplate::kMaxNesting));
    }
    Block block;
    while (!tokens_.Is(TokenKind::kEnd)) {
      const int line = tokens_.line();
      if (tokens_.Is(TokenKind::kText)) {
        block.push_back(Make(line, TextStatement{tokens_.Next().text}));
      } else if (tokens_.Is(TokenKind::kPrintBegin)) {
        tokens_.Next();
        block.push_back(Make(line, PrintStatement{expressions_.ParseTuple()}));
        tokens_.Expect(TokenKind::kPrintEnd, "'}}'");
      } else {
        tokens_.Expect(TokenKind::kBlockBegin, "a tag");
        if (std::any_of(ends.begin(), ends.end(),
                        [&](std::string_view end) { return tokens_.IsName(end); })) {
          --nesting_;
          return block;
        }
        ParseStatement(block);
      }
    }
    if (ends.size() > 0) {
      tokens_.FailHere(fmt::format("the template ends without '{}'", *(ends.end() - 1)));
    }
    --nesting_;
    return block;
  }

  void EndTag() { tokens_.Expect(TokenKind::kBlockEnd, "'%}'"); }

  void ParseStatement(Block& block) {
    const int line = tokens_.line();
    const std::string name = tokens_.ExpectAnyName();
    if (name == "if") {
      block.push_back(Make(line, ParseIf()));
    } else if (name == "for") {
      block.push_back(Make(line, ParseFor()));
    } else if (name == "set") {
      block.push_back(ParseSet(line));
    } else if (name == "macro") {
      block.push_back(Make(line, ParseMacro(line)));
    } else if (name == "break" || name == "continue") {
      if (loops_ == 0) TokenStream::FailAt(line, fmt::format("'{}' outside of a loop", name));
      EndTag();
      block.push_back(name == "break" ? Make(line, BreakStatement{})
                                      : Make(line, ContinueStatement{}));
    } else if (name == "generation") {
      ParseGeneration(block);
    } else {
      TokenStream::FailAt(line, fmt::format("tag '{}' is not supported here", name));
    }
  }

  // {% generation %} marks the assistant's part for training; it renders as its content.
  void ParseGeneration(Block& block) {
    EndTag();
    Block body = ParseBlock({"endgeneration"});
    tokens_.Next();
    EndTag();
    for (auto& statement : body) block.push_back(std::move(statement));
  }

  IfStatement ParseIf() {
    IfStatement statement;
    while (true) {
      ExpressionRef condition = expressions_.ParseTuple();
      EndTag();
      Block body = ParseBlock({"elif", "else", "endif"});
      statement.branches.emplace_back(std::move(condition), std::move(body));
      if (!tokens_.SkipName("elif")) break;
    }
    if (tokens_.SkipName("else")) {
      EndTag();
      statement.otherwise = ParseBlock({"endif"});
    }
    tokens_.ExpectName("endif");
    EndTag();
    return statement;
  }

  std::vector<std::string> ParseTargets() {
    std::vector<std::string> targets;
    const bool parentheses = tokens_.SkipOperator("(");
    do {
      targets.push_back(tokens_.ExpectAnyName());
    } while (tokens_.SkipOperator(","));
    if (parentheses) tokens_.ExpectOperator(")");
    return targets;
  }

  ForStatement ParseFor() {
    ForStatement statement;
    statement.targets = ParseTargets();
    tokens_.ExpectName("in");
    statement.items = expressions_.ParseTuple(/*with_condition=*/false);
    if (tokens_.SkipName("if")) statement.condition = expressions_.ParseExpression();
    if (tokens_.IsName("recursive")) tokens_.FailHere("recursive loops are not supported");
    EndTag();
    ++loops_;
    ++scopes_;
    statement.body = ParseBlock({"else", "endfor"});
    --loops_;
    if (tokens_.SkipName("else")) {
      EndTag();
      statement.otherwise = ParseBlock({"endfor"});
    }
    --scopes_;
    tokens_.ExpectName("endfor");
    EndTag();
    return statement;
  }

  std::unique_ptr<const Statement> ParseSet(int line) {
    SetStatement statement;
    statement.targets = ParseTargets();
    if (statement.targets.size() == 1 && tokens_.SkipOperator(".")) {
      statement.attribute = tokens_.ExpectAnyName();
    }
    if (tokens_.SkipOperator("=")) {
      statement.value = expressions_.ParseTuple();
      EndTag();
      return Make(line, std::move(statement));
    }
    if (statement.targets.size() > 1 || !statement.attribute.empty() ||
        !tokens_.Is(TokenKind::kBlockEnd)) {
      tokens_.FailHere(fmt::format("expected '=', found {}", tokens_.Shown()));
    }
    EndTag();
    ++scopes_;
    SetBlockStatement block{statement.targets[0], ParseBlock({"endset"})};
    --scopes_;
    tokens_.Next();
    EndTag();
    return Make(line, std::move(block));
  }

  MacroStatement ParseMacro(int line) {
    // A macro sees the template's variables only, not those of a surrounding loop.
    if (scopes_ > 0) TokenStream::FailAt(line, "a macro inside of a loop is not supported");
    MacroStatement macro;
    macro.name = tokens_.ExpectAnyName();
    macros_.insert(macro.name);
    tokens_.ExpectOperator("(");
    while (!tokens_.IsOperator(")")) {
      MacroParameter parameter{tokens_.ExpectAnyName(), nullptr};
      if (tokens_.SkipOperator("=")) parameter.standard = expressions_.ParseExpression();
      macro.parameters.push_back(std::move(parameter));
      if (!tokens_.SkipOperator(",")) break;
    }
    tokens_.ExpectOperator(")");
    EndTag();
    ++scopes_;
    const int outer_loops = std::exchange(loops_, 0);
    macro.body = ParseBlock({"endmacro"});
    loops_ = outer_loops;
    --scopes_;
    tokens_.Next();
    if (tokens_.Is(TokenKind::kName)) tokens_.Next();  // {% endmacro name %}
    EndTag();
    return macro;
  }

  TokenStream tokens_;
  ExpressionParser expressions_;
  std::set<std::string> macros_;
  int nesting_ = 0;
  int loops_ = 0;   // loops around the current statement, in the same macro
  int scopes_ = 0;  // loops, macros and set blocks around it
};

}  // namespace

Block Parse(std::string_view source) { return Parser(source).Run(); }

}  // namespace penstock::jinja
