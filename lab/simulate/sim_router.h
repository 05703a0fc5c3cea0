#pragma once

#include <random>
#include <vector>

#include "lab/simulate/sim_policy.h"
#include "router/placement/predictors.h"
#include "router/placement/prefill_queue.h"

namespace penstock {

// A decode worker as the router sees it.
struct SimDecodeView {
  double requests = 0;
  double context_tokens = 0;
  uint64_t blocks_total = 0;
  uint64_t blocks_taken = 0;
};

struct SimPlaced {
  SimChoice prefill;
  uint32_t decode = 0;
  PlacementTerms predicted;
};

// The production router's decision in the simulator: its placement, its predictors, its queues and
// its expectations in the index.
class SimRouter {
 public:
  struct Options {
    uint32_t workers = 16;
    uint32_t block_tokens = 512;
    PlacementPolicy policy;
    std::optional<MoveModel> pull;  // nullopt: workers do not read each other's stores
    MoveModel link;
    StepModel step;
    uint64_t seed = 0;
    bool predictions = true;
  };
  SimRouter(const Options& options, PrefixIndex& index);

  // `id` names the request until its first token.
  absl::StatusOr<SimPlaced> Place(uint32_t id, const SimRequest& request, double now_s,
                                  const std::vector<SimDecodeView>& decode);
  void OnFirstToken(uint32_t id, uint32_t worker, double now_s);
  void OnPrefilled(const SimRequest& request, uint32_t cached_tokens, double ms) {
    prefill_.Observe(request.prompt_tokens, cached_tokens, ms);
  }

 private:
  Candidate PrefillCandidate(uint32_t worker, const SimRequest& request, TimePoint now) const;

  const Options options_;
  PrefixIndex& index_;
  PrefixMatches matches_;
  std::vector<uint32_t> sources_;  // of the placement under way: who they are
  PrefillPredictor prefill_;
  std::vector<PrefillQueue> queues_;
  std::mt19937_64 random_;
};

}  // namespace penstock
