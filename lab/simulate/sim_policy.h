#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lab/simulate/sim_trace.h"
#include "router/index/prefix_index.h"
#include "router/placement/cost_models.h"
#include "router/placement/placement.h"

namespace penstock {

// The state that a policy may read: the router's own view. SimCluster keeps it.
struct SimView {
  double now_s = 0;
  uint32_t block_tokens = 512;
  std::vector<double> queue_s;       // predicted, until each prefill worker would begin
  std::vector<double> queue_tokens;  // of uncached tokens not computed yet
  std::vector<double> requests;  // sent and not answered (the first token, if decode is elsewhere)
  std::vector<double> blocks;    // of the prompts of those
  const PrefixMatches* matches = nullptr;  // of this prompt
  PrefillModel prefill;                    // as the router knows it
  MoveModel pull;
};

struct SimChoice {
  uint32_t worker = 0;
  uint32_t reach_blocks = 0;  // leading blocks to have after pulling from another worker; 0: none
};

// A rule to choose a prefill worker by. One thread.
class SimPolicy {
 public:
  virtual ~SimPolicy() = default;
  virtual SimChoice Choose(const SimRequest& request, const SimView& view) = 0;
};

// Other systems' rules, as rows to compare with. Null where there is none of this name.
std::unique_ptr<SimPolicy> MakeSimPolicy(const std::string& name, uint32_t workers, uint64_t seed);
std::vector<std::string> SimPolicyNames();

}  // namespace penstock
