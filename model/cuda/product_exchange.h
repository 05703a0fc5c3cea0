#pragma once

#include "base/status.h"
#include "kernels/cuda/row_params.h"

namespace penstock {

// What a GPU of a worker tells the others before it enqueues a step, and what all have told.
struct StepReadiness {
  absl::Status prepared;      // of all: the first error
  bool memory_moved = false;  // memory that graphs name; of all: of any GPU
};

// Interface: adds up products whose inputs are divided among the GPUs of a worker, each of which
// has a part of every sum. A GPU that holds the whole model has no exchange.
class ProductExchange {
 public:
  virtual ~ProductExchange() = default;
  // Called by every GPU before it enqueues the first part of a step, and once more if it has
  // captured the step as a graph. Blocks until all GPUs have called it. If one is not prepared, no
  // GPU may compute, or use its graph.
  virtual StepReadiness Agree(const StepReadiness& own) = 0;
  // Enqueues the sum over all GPUs of `part`, which is [rows][part.width] and has no bias. The
  // result must be read on `stream` before the next call. All GPUs make the same calls in the same
  // order.
  virtual cuda::Product Sum(const cuda::Product& part, int rows, void* stream) = 0;
};

}  // namespace penstock
