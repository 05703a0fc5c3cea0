#pragma once

#include <string_view>

#include "model/template/jinja_ast.h"

namespace penstock::jinja {

// Parses a whole template. Throws Error with its line for a syntax error or a construct that the
// interpreter does not support.
Block Parse(std::string_view source);

}  // namespace penstock::jinja
