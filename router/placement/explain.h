#pragma once

#include <string_view>

#include "proto/inference.pb.h"
#include "router/placement/placement.h"

namespace penstock {

// `placement.scored` in words and numbers, in that order; the names of the workers are the caller's
// to fill in.
v1::Explanation Explain(const PlacementInput& input, const Placement& placement);

std::string_view NameOf(ScoredPair::Verdict verdict);

}  // namespace penstock
