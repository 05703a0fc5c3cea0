#pragma once

#include <string>

#include "lab/plan/plan_request.h"
#include "lab/plan/worker_model.h"

namespace penstock {

// The workers of one role.
struct RolePlan {
  WorkerModel worker;
  uint64_t kv_memory_bytes = 0;  // of a device
  int64_t blocks = 0;            // WorkerState.kv_blocks_total of a worker
  int64_t rows = 0;              // and kv_rows_total; 0: each block has memory for all layers
  int64_t workers = 0;

  int64_t devices() const { return workers * worker.degree; }
};

// A decode worker's batch.
struct BatchChoice {
  int32_t batch = 0;  // the largest that keeps the target between tokens and fits
  std::string limit;  // what keeps it from being larger
  double token_s = 0;
};

// Chooses the degree and counts the blocks; `workers` stays 0. INVALID_ARGUMENT names the limit
// that no allowed degree keeps: memory for the weights, blocks for the longest request or, for
// decode workers, the target between tokens. Pure.
absl::StatusOr<RolePlan> FitPrefill(const PlanRequest& request, const ModelCost& cost);
absl::StatusOr<RolePlan> FitDecode(const PlanRequest& request, const ModelCost& cost);
// The sequences of `tokens` tokens for which a worker has blocks and rows.
int64_t SequencesThatFit(const RolePlan& role, int64_t tokens);
// The sequences of mean size for which a decode worker has blocks, at most --max-batch.
int32_t BatchThatFits(const PlanRequest& request, const RolePlan& role);
absl::StatusOr<BatchChoice> ChooseBatch(const PlanRequest& request, const RolePlan& role);

}  // namespace penstock
