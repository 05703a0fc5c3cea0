#pragma once

#include "kernels/cuda/attention_params.h"
#include "kernels/cuda/row_params.h"
#include "model/cuda/latents/device_latents.h"

namespace penstock {

// Enqueues the parts of one layer's latent attention.
class LatentPass {
 public:
  struct Parts {
    const ModelConfig& config;
    const DeviceLatents& layer;
    LatentScratch& scratch;
    int32_t rows = 0;
    void* stream = nullptr;
  };
  // Of every row, [rows][rotated pairs].
  struct Angles {
    const float* cosines = nullptr;
    const float* sines = nullptr;
  };
  // All parts outlive this object.
  explicit LatentPass(const Parts& parts) : parts_(parts) {}

  // Normalises and rotates the latents with their keys, and writes them to their pages.
  void StoreLatents(const cuda::Product& latents, const Angles& angles, const cuda::KvPlanes& kv,
                    const int64_t* slots) const;
  // Normalises what queries are products of.
  void NormaliseQueries(const cuda::Product& product, Bf16* output) const;
  // Rotates queries. `queries` is [rows][heads][query dims].
  void RotateQueries(const cuda::Product& product, const Angles& angles, Bf16* queries) const;
  // `attention` is as for the other models, with the queries of RotateQueries. Its output is
  // [rows][heads][value dims].
  void Attend(cuda::AttentionParams attention, const cuda::AttentionCounts& counts) const;

 private:
  void MultiplyHeads(const DeviceHeads& heads, const Bf16* input, int32_t input_step,
                     Bf16* output) const;

  const Parts parts_;
};

}  // namespace penstock
