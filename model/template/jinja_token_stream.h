#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/template/jinja_lexer.h"
#include "model/template/jinja_value.h"

namespace penstock::jinja {

// The parser's position in the tokens. Every Error names the line.
class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  int line() const { return current().line; }
  Token Next() {
    Token token = current();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }

  bool Is(TokenKind kind) const { return current().kind == kind; }
  bool IsOperator(std::string_view op) const { return Is(TokenKind::kOperator, op); }
  bool IsName(std::string_view name) const { return Is(TokenKind::kName, name); }
  bool SkipOperator(std::string_view op) { return IsOperator(op) && (Next(), true); }
  bool SkipName(std::string_view name) { return IsName(name) && (Next(), true); }

  void ExpectOperator(std::string_view op) {
    if (!SkipOperator(op)) FailHere(fmt::format("expected '{}', found {}", op, Shown()));
  }
  void ExpectName(std::string_view name) {
    if (!SkipName(name)) FailHere(fmt::format("expected '{}', found {}", name, Shown()));
  }
  void Expect(TokenKind kind, std::string_view what) {
    if (!Is(kind)) FailHere(fmt::format("expected {}, found {}", what, Shown()));
    Next();
  }
  std::string ExpectAnyName() {
    if (!Is(TokenKind::kName)) FailHere(fmt::format("expected a name, found {}", Shown()));
    return Next().text;
  }

  std::string Shown() const {
    switch (current().kind) {
      case TokenKind::kEnd:
        return "the end of the template";
      case TokenKind::kBlockEnd:
        return "the end of the tag";
      case TokenKind::kPrintEnd:
        return "the end of the expression";
      default:
        return fmt::format("'{}'", current().text.substr(0, 80));
    }
  }

  [[noreturn]] void FailHere(std::string message) const { FailAt(line(), std::move(message)); }
  [[noreturn]] static void FailAt(int line, std::string message) {
    throw Error{std::move(message), absl::StatusCode::kInvalidArgument, line};
  }

 private:
  bool Is(TokenKind kind, std::string_view text) const {
    return current().kind == kind && current().text == text;
  }

  std::vector<Token> tokens_;  // ends with kEnd
  size_t at_ = 0;
};

}  // namespace penstock::jinja
