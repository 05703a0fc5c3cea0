#pragma once

#include "kernels/cuda/products.h"
#include "kernels/cuda/row_params.h"
#include "model/cuda/centred/device_centre.h"
#include "model/cuda/cuda_scratch.h"
#include "model/cuda/cuda_step.h"
#include "model/cuda/latents/latent_pass.h"
#include "model/cuda/product_exchange.h"
#include "model/cuda/selection/page_selector.h"

namespace penstock {

// The factor of attention scores.
float AttentionScale(const ModelConfig& config);

// Enqueues the parts of a step's layers. `config` has the sizes of this GPU's shard. Used by one
// step on one thread.
class CudaLayers {
 public:
  struct Parts {
    const ModelConfig& config;
    const CudaWeights& weights;
    CudaScratch& scratch;
    const cuda::Products& products;
    ProductExchange* exchange = nullptr;  // null: this GPU has the whole model
    void* stream = nullptr;
    PageSelector* selector = nullptr;      // null: no row chooses pages
    const DeviceCentre* centre = nullptr;  // null: no pages have centred keys
    // Of attention that the library computes (CudaAttention::prompts), without a window and tables.
    cuda::library::PrefillShape prompts = {};
  };
  // All parts outlive this object.
  explicit CudaLayers(const Parts& parts) : parts_(parts) {}

  void Embed(const CudaStep& step) const;
  // Projects and rotates queries, keys and values.
  void AppendKv(int32_t layer, CudaStep& step) const;
  void KeepRows(const CudaStep& step) const;  // keeps only the rows of CudaStep::kept
  void KeepLastRows(CudaStep& step) const;    // keeps only the rows of CudaBatch::last_rows
  void Attend(int32_t layer, const CudaStep& step) const;
  void Finish(int32_t layer, CudaStep& step) const;  // output projection and MLP
  // Computes the hidden states of the step's rows, behind `norm`, in scratch.input.
  void NormOutputs(const cuda::DeviceBuffer& norm, CudaStep& step) const;
  // Computes the logits [rows][vocabulary] of these hidden states in scratch.product, and makes the
  // draws.
  void Logits(const CudaStep& step) const;
  // Replaces the residual, which has the embeddings of the rows' tokens, by the input of the layer
  // for multi-token prediction. Where the step keeps hidden states, they are in scratch.input.
  void ProjectMtp(const CudaStep& step) const;

 private:
  void GatherRows(const int32_t* from, size_t rows) const;
  void GatherQueries(const Bf16* all, const int32_t* from, size_t rows, Bf16* to) const;
  // Multiplies the rows of scratch.input. The second function multiplies those of `input`.
  cuda::Product Multiply(const CudaMatrix& matrix, int32_t rows) const;
  cuda::Product Multiply(const CudaMatrix& matrix, const Bf16* input, int32_t rows) const;
  const Bf16* GatherOutputs(const CudaStep& step) const;
  cuda::Product MultiplyShared(const CudaMatrix& matrix, int32_t rows) const;
  // A norm of the residual into scratch.input, without a product to add.
  cuda::NormParams Norm(const CudaStep& step, const cuda::DeviceBuffer& norm) const;
  // The same behind step.to_add, which it takes.
  cuda::NormParams NormAdding(CudaStep& step, const cuda::DeviceBuffer& norm) const;
  cuda::Product Qkv(const CudaLayer& layer, int32_t rows) const;
  LatentPass Latents(const CudaLayer& layer, int32_t rows) const;
  cuda::AttentionParams AttentionOf(int32_t layer, const CudaStep& step, const CudaAttention& rows,
                                    const AttentionInputs& at) const;
  void Launch(const cuda::AttentionParams& attention, const cuda::AttentionPlan& plan) const;
  void AttendPrompts(int32_t layer, const CudaStep& step) const;
  void AttendSelected(int32_t layer, const CudaStep& step) const;
  void AppendLatents(int32_t layer, const StepAngles& at, const CudaStep& step) const;
  void Activate(const cuda::Product& product, int32_t rows) const;
  // The output of a layer's MLP, or of its mixture, for the rows of scratch.input.
  cuda::Product Mlp(const CudaLayer& layer, int32_t rows) const;
  cuda::Product Experts(const CudaLayer& layer, int32_t rows) const;

  const Parts parts_;
};

}  // namespace penstock
