#pragma once

#include <string_view>

#include "proto/inference.pb.h"
#include "router/placement/placement.h"

namespace penstock {

// `placement.scored` as the API's message, in the same order. The caller fills in the names of the
// workers. Pure.
v1::Explanation Explain(const PlacementInput& input, const Placement& placement);

// The verdict's name in the API and in `penstock explain`.
std::string_view NameOf(ScoredPair::Verdict verdict);

}  // namespace penstock
