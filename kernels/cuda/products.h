#pragma once

#include <string_view>

#include "base/status.h"
#include "kernels/cuda/gemm.h"

namespace penstock::cuda {

// An implementation of the matrix products, with weights in bf16 and quantised ones. A row of a
// product has the same bits for any other rows. Two implementations differ in their last bits, so
// all products of a model, for prompts and for answers, use one of them.
class Products {
 public:
  virtual ~Products() = default;
  // Part of the name of a worker's arithmetic.
  virtual std::string_view name() const = 0;
  // The order in which it adds up inputs, in which quantised weights are stored.
  virtual InputOrder order() const = 0;
  // FAILED_PRECONDITION says what of the weight's shape is not supported.
  virtual absl::Status Check(const Weight& weight) const = 0;
  // The largest number of slices of a product with this weight.
  virtual int32_t Slices(const Weight& weight) const = 0;
  // Enqueues input [rows][inputs] * weight^T. `output` has room for Slices(weight) * rows * outputs
  // floats. Requires Check(weight).
  virtual Product Multiply(const Weight& weight, const Bf16* input, int rows, float* output,
                           void* stream) const = 0;
};

// The kernels of this project (gemm.h), which support every GPU and every weight.
const Products& OwnProducts();

}  // namespace penstock::cuda
