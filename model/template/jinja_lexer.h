#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::jinja {

enum class TokenKind {
  kText,        // between tags, after white-space control
  kBlockBegin,  // {%
  kBlockEnd,
  kPrintBegin,  // {{
  kPrintEnd,
  kName,
  kString,  // the value, with escapes resolved
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;
  int line = 1;
};

// Divides a template into tokens as Jinja does with trim_blocks and lstrip_blocks. `source` must be
// valid UTF-8. Throws Error with its line.
std::vector<Token> Lex(std::string_view source);

}  // namespace penstock::jinja
