#pragma once

#include <string>

#include "base/status.h"
#include "proto/inference.pb.h"

namespace penstock {

// The field of a request that says what its answer looks like; errors about it begin with this
// name.
inline constexpr char kStructuredField[] = "structured";

// The grammar that workers enforce (SamplingSpec.grammar); empty if the request has no constraint.
// INVALID_ARGUMENT names what is not supported, for schemas by JSON pointer, keyword and limit.
// Pure; takes about a millisecond.
absl::StatusOr<std::string> GrammarOf(const v1::StructuredOutput& structured);

}  // namespace penstock
