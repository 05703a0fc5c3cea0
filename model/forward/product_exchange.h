#pragma once

#include "base/status.h"
#include "kernels/cuda/row_params.h"

namespace penstock {

// A seam: what becomes of a product whose inputs are spread over the GPUs of a worker, each of
// which has a part of every sum. A GPU that has the whole model has none.
class ProductExchange {
 public:
  virtual ~ProductExchange() = default;
  // Every GPU comes to this when it has all that a step needs, or has not, and before it enqueues
  // the first part of it. OK when all have; else nobody computes.
  virtual absl::Status Agree(const absl::Status& prepared) = 0;
  // Enqueues the sum over all GPUs of `part`, which is [rows][part.width] and has no bias. The
  // result is read on `stream` before the next call. Every GPU makes the same calls in one order.
  virtual cuda::Product Sum(const cuda::Product& part, int rows, void* stream) = 0;
};

}  // namespace penstock
