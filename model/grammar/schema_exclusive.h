#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "model/grammar/schema_json.h"

namespace penstock {

// INVALID_ARGUMENT unless no value can satisfy two of the schemas, as their types and the constants
// of their required properties tell. Pure.
absl::Status CheckSchemasExclusive(const std::vector<SchemaJson>& schemas,
                                   const std::string& pointer);

}  // namespace penstock
