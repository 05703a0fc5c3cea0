#pragma once

#include <memory>
#include <string>
#include <vector>

#include "router/placement/placement.h"

namespace penstock {

// Another system's rule for the choice of a prefill worker, as a row to compare with. It sees what
// Place sees. The decode worker is the one with the fewest tokens of context. One thread.
class SimPolicy {
 public:
  virtual ~SimPolicy() = default;
  // An index into `input.prefill`, which is not empty. `prompt`: its full blocks.
  virtual size_t Choose(const PlacementInput& input, std::span<const BlockId> prompt) = 0;
  // True when the worker may read the prefix from another one first.
  virtual bool pulls() const { return false; }
};

// Null where there is no policy of this name.
std::unique_ptr<SimPolicy> MakeSimPolicy(const std::string& name, uint64_t seed);
std::vector<std::string> SimPolicyNames();

// The placement of a request by this policy, in the place of penstock::Place.
absl::StatusOr<Placement> PlaceBy(SimPolicy& policy, const PlacementInput& input,
                                  std::span<const BlockId> prompt);

}  // namespace penstock
