#pragma once

#include "base/status.h"
#include "model/grammar/schema_json.h"

namespace penstock {

// INVALID_ARGUMENT when one of the gated definitions has only values without an end, because it
// needs itself, or is itself without anything around it. Pure.
absl::Status CheckSchemaEnds(const SchemaJson& definitions);

}  // namespace penstock
