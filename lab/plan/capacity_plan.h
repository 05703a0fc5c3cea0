#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lab/plan/link_need.h"
#include "lab/plan/plan_request.h"
#include "lab/plan/role_fit.h"

namespace penstock {

struct ContextCapacity {
  int64_t context_tokens = 0;
  int64_t blocks = 0;     // of one sequence
  int64_t rows = 0;       // that it holds at once; 0: blocks have memory for all layers
  int64_t sequences = 0;  // at once on one decode worker
};

struct DecodePoint {
  int32_t batch = 0;
  double step_s = 0;
  double tokens_per_s = 0;
};

struct TierNeed {
  std::string form;
  uint64_t bytes = 0;  // that hold the KV of targets.keep_s of traffic
};

// The same traffic if no prompt were cached.
struct WithoutCache {
  int64_t prefill_workers = 0;
  double million_tokens_price = 0;
};

// Seconds are without queues: what an idle worker would take.
struct CapacityPlan {
  ModelCost cost;
  std::vector<KvForm> forms;
  KvForm wire;  // of these, the one that KV travels in
  RolePlan prefill;
  RolePlan decode;
  std::vector<ContextCapacity> contexts;
  double first_token_s = 0;           // of the mean prompt
  double transfer_s = 0;              // of its KV, in whole
  double exposed_s = 0;               // what compute does not hide of that: before the second token
  double prefill_exchange_share = 0;  // of a prompt's time: tensor parallelism's exchange
  double decode_exchange_share = 0;   // of a step's time
  std::vector<DecodePoint> steps;     // by batch, at the mean context
  BatchChoice batch;
  // The mean share of a worker's time, and of `batch`, that this traffic uses.
  double prefill_use = 0;
  double decode_use = 0;
  double prefill_per_decode = 0;     // workers, before rounding up
  int64_t prefill_cache_tokens = 0;  // that one prefill worker and its host memory keep
  double hit_ratio_max = 0;          // of a trace, with caches without limit
  LinkNeed link;
  WithoutCache without_cache;
  // With PlanRequest::gpu_hour_price, for a million tokens, prompts and answers together.
  double million_tokens_price = 0;
  std::vector<TierNeed> tiers;
  std::vector<std::string> warnings;  // limits that the plan does not keep, or that workers have

  int64_t devices() const { return prefill.devices() + decode.devices(); }
};

// INVALID_ARGUMENT where no worker of this hardware can serve the model or the traffic at all; it
// says which limit is hit. Pure.
absl::StatusOr<CapacityPlan> MakePlan(const PlanRequest& request);

}  // namespace penstock
