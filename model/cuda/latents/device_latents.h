#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "kernels/bf16.h"
#include "kernels/cuda/cuda_device.h"
#include "model/checkpoint/model_config.h"

namespace penstock {

// This room, model/cuda/latents, has the parts of multi-head latent attention on a GPU: the memory
// of a layer's heads, and what a layer enqueues around its dense products. It may use base/,
// kernels/, kernels/cuda, kernels/cuda/latents, model/checkpoint and model/weights. It does not
// know uploads or steps.

// Owns a matrix of each head in device memory, bf16 [heads][outputs][inputs]. It may be moved.
struct DeviceHeads {
  cuda::DeviceBuffer memory;
  int32_t outputs = 0;
  int32_t inputs = 0;
};

// Owns a layer's norms of latents, f32, and the matrices of this GPU's heads, as in LatentWeights.
// The dense matrices are in CudaLayer.
struct DeviceLatents {
  cuda::DeviceBuffer norm;
  cuda::DeviceBuffer query_norm;  // empty: queries are products of the input
  DeviceHeads queries;            // from a plain query to one of latents
  DeviceHeads values;             // from what attention adds up to a head's value

  size_t bytes() const {
    return norm.bytes() + query_norm.bytes() + queries.memory.bytes() + values.memory.bytes();
  }
};

// Owns the memory that latent attention uses in a step, one layer after the other.
struct LatentScratch {
  // For steps of up to `rows` rows. RESOURCE_EXHAUSTED names the allocation.
  absl::Status Allocate(const ModelConfig& config, size_t rows);
  std::vector<const cuda::DeviceBuffer*> DeviceBuffers() const { return {&queries, &sums}; }

  cuda::DeviceBuffer queries;  // bf16 [rows][heads][rank]: queries of latents
  cuda::DeviceBuffer sums;     // the same: what attention adds up
};

}  // namespace penstock
