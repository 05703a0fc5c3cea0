#pragma once

#include <cstddef>
#include <vector>

#include "base/status.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/experts.h"
#include "model/checkpoint/model_config.h"

namespace penstock {

// This room, model/cuda/experts, has the mixtures of experts of a model on a GPU: their memory, and
// what a layer of them enqueues. It may use base/, kernels/cuda and model/checkpoint. It does not
// know attention, uploads or steps.

// Owns the routed experts of a layer in device memory. The shared expert is a dense MLP.
struct DeviceExperts {
  // F32 [experts, and one more if the shared expert has a gate][hidden].
  cuda::DeviceBuffer router;
  cuda::DeviceBuffer choice_bias;  // f32 [experts], or empty
  cuda::DeviceBuffer gate_up_memory, down_memory;
  cuda::GroupedWeight gate_up;  // all rows of gate, then all of up
  cuda::GroupedWeight down;
  bool shared = false;  // the layer has a shared expert
  bool shared_gate = false;

  size_t bytes() const {
    return router.bytes() + choice_bias.bytes() + gate_up_memory.bytes() + down_memory.bytes();
  }
};

// Owns the memory that layers with experts use in a step, one after the other.
struct ExpertScratch {
  // For steps of up to `rows` rows of layers like `layer`. RESOURCE_EXHAUSTED names the allocation.
  absl::Status Allocate(const ExpertConfig& config, const DeviceExperts& layer, size_t rows);
  std::vector<const cuda::DeviceBuffer*> DeviceBuffers() const;

  cuda::DeviceBuffer scores;                    // f32 [rows][experts and a gate]
  cuda::DeviceBuffer chosen, weights;           // [rows][experts per token]
  cuda::DeviceBuffer shared_weights;            // f32 [rows]
  cuda::DeviceBuffer first, pair_rows, places;  // GroupParams
  cuda::DeviceBuffer input;                     // bf16, of a grouped product
  cuda::DeviceBuffer sums;                      // f32 [rows][hidden]
};

}  // namespace penstock
