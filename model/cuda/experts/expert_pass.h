#pragma once

#include "kernels/cuda/row_params.h"
#include "model/cuda/experts/device_experts.h"

namespace penstock {

// Enqueues the parts of one layer's mixture of experts: AddRouted, then AddShared if the layer has
// a shared expert, then the reader of sums().
class ExpertPass {
 public:
  struct Parts {
    const ExpertConfig& config;
    const DeviceExperts& layer;
    ExpertScratch& scratch;
    float* product = nullptr;  // scratch memory of products
    int32_t rows = 0;
    void* stream = nullptr;
  };
  // All parts outlive this object.
  explicit ExpertPass(const Parts& parts) : parts_(parts) {}

  // The outputs of the experts that the rows of `input` choose. It has read `input` when it is
  // done.
  void AddRouted(const Bf16* input) const;
  // `product` is the output of the shared expert.
  void AddShared(const cuda::Product& product) const;
  // The sum of what was added, [rows][hidden].
  cuda::Product sums() const;

 private:
  void Choose(const Bf16* input) const;
  cuda::GroupedRows Rows() const;
  cuda::Product Multiply(const DeviceMatrices& matrices) const;
  void Activate(const cuda::Product& product, int32_t pairs) const;

  const Parts parts_;
};

}  // namespace penstock
