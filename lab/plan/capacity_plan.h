#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "lab/plan/hardware.h"
#include "lab/plan/link_need.h"
#include "lab/plan/model_cost.h"

namespace penstock {

struct Traffic {
  double requests_per_s = 1;
  double prompt_tokens = 1024;  // mean
  double answer_tokens = 256;   // mean
  double hit_ratio = 0;         // of prompt tokens whose KV is there already
};

struct Targets {
  double token_s = 0.05;     // time between tokens, at most
  double utilisation = 0.7;  // of a worker's time at this traffic, at most
  double keep_s = 600;       // how long the KV of a request should be found again
};

struct PlanRequest {
  ModelConfig model;
  Hardware hardware;
  int32_t block_tokens = 16;
  std::optional<uint64_t> kv_memory_bytes;  // a worker's; absent: what weights and reserve leave
  double memory_share = 0.9;                // of the hardware's memory that may be used at all
  double link_bytes_per_s = 1.25e9;         // from a prefill to a decode worker
  int32_t batch_max = 64;                   // of a decode step
  double gpu_hour_price = 0;                // 0: unknown
  std::vector<int64_t> contexts;            // tokens a sequence, for the table of capacity
  Traffic traffic;
  Targets targets;
};

struct ContextCapacity {
  int64_t context_tokens = 0;
  int64_t blocks = 0;     // of one sequence
  int64_t sequences = 0;  // at once on one worker
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

// Seconds are without queues: what an idle worker would take.
struct CapacityPlan {
  ModelCost cost;
  std::vector<KvForm> forms;
  uint64_t kv_memory_bytes = 0;
  int64_t blocks = 0;  // WorkerState.kv_blocks_total of a worker with this kv_memory
  std::vector<ContextCapacity> contexts;
  double first_token_s = 0;         // of the mean prompt
  double transfer_s = 0;            // of its KV, in whole
  double exposed_s = 0;             // what compute does not hide of that: before the second token
  std::vector<DecodePoint> decode;  // by batch, at the mean context
  int32_t batch = 0;                // the largest that keeps the target and fits
  std::string batch_limit;          // what keeps it from being larger
  double token_s = 0;               // at that batch
  int64_t prefill_workers = 0;
  int64_t decode_workers = 0;
  double prefill_per_decode = 0;  // before rounding up
  LinkNeed link;
  // With PlanRequest::gpu_hour_price, for a million tokens, prompts and answers together: of the
  // workers above, and of those that a plan without any cached prompt would need.
  double million_tokens_price = 0;
  double uncached_million_tokens_price = 0;
  std::vector<TierNeed> tiers;
};

// INVALID_ARGUMENT where no worker of this hardware can serve the model or the traffic at all; it
// says which limit is hit. Pure.
absl::StatusOr<CapacityPlan> MakePlan(const PlanRequest& request);

}  // namespace penstock
