#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace penstock {

// The grammar (grammar.h) of the JSON texts that a schema allows, with up to 32 white space
// characters between tokens, or, if `compact`, with those of ", " and ": " alone. Errors as
// GateSchema's. Pure; at most tens of milliseconds.
absl::StatusOr<std::string> SchemaGrammar(std::string_view schema, bool compact);

}  // namespace penstock
