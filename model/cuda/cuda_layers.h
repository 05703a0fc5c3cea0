#pragma once

#include "model/cuda/cuda_scratch.h"
#include "model/cuda/cuda_step.h"
#include "model/forward/product_exchange.h"

namespace penstock {

// Enqueues the parts of a step's layers. `config` has the sizes of this GPU's part of the model.
class CudaLayers {
 public:
  struct Parts {
    const ModelConfig& config;
    const CudaWeights& weights;
    CudaScratch& scratch;
    ProductExchange* exchange = nullptr;  // null: this GPU has the whole model
    void* stream = nullptr;
  };
  // All outlive it.
  explicit CudaLayers(const Parts& parts) : parts_(parts) {}

  void Embed(const CudaStep& step) const;
  void AppendKv(int32_t layer, const CudaStep& step) const;  // queries, keys and values
  void KeepLastRows(CudaStep& step) const;  // those whose logits are wanted become the only ones
  void Attend(int32_t layer, const CudaStep& step) const;
  void Finish(int32_t layer, const CudaStep& step) const;  // what follows attention
  // [rows][vocabulary] of the step's rows, to the scratch's product, and what is drawn from them.
  void Logits(const CudaStep& step) const;

 private:
  cuda::Product Multiply(const CudaMatrix& matrix, int32_t rows) const;
  cuda::Product MultiplyShared(const CudaMatrix& matrix, int32_t rows) const;
  void DecodeAttend(int32_t layer, int32_t window, const CudaStep& step) const;
  void PrefillAttend(int32_t layer, int32_t window, const CudaStep& step) const;

  const Parts parts_;
};

}  // namespace penstock
