#pragma once

#include <string>

#include "base/status.h"
#include "model/grammar/schema_gate.h"
#include "model/grammar/schema_json.h"

namespace penstock {

// Parts of GateSchema: the gated schemas of strings, integers and numbers. `said` has the keywords
// of the schema at `pointer`; those of other types do not matter. A string that needs a rule of
// ours is added to `out`.
absl::StatusOr<SchemaJson> StringSchema(const SchemaJson& said, const std::string& pointer,
                                        GatedSchema& out);
absl::StatusOr<SchemaJson> IntegerSchema(const SchemaJson& said, const std::string& pointer);
absl::StatusOr<SchemaJson> NumberSchema(const SchemaJson& said, const std::string& pointer);

}  // namespace penstock
