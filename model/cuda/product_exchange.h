#pragma once

#include "base/status.h"
#include "kernels/cuda/row_params.h"

namespace penstock {

// Interface: adds up products whose inputs are divided among the GPUs of a worker, each of which
// has a part of every sum. A GPU that holds the whole model has no exchange.
class ProductExchange {
 public:
  virtual ~ProductExchange() = default;
  // Called by every GPU before it enqueues the first part of a step, with the status of its
  // preparation. Blocks until all GPUs have called it. Returns OK if all are prepared; otherwise no
  // GPU may compute.
  virtual absl::Status Agree(const absl::Status& prepared) = 0;
  // Enqueues the sum over all GPUs of `part`, which is [rows][part.width] and has no bias. The
  // result must be read on `stream` before the next call. All GPUs make the same calls in the same
  // order.
  virtual cuda::Product Sum(const cuda::Product& part, int rows, void* stream) = 0;
};

}  // namespace penstock
