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

// Owns a matrix of each expert in device memory, in bf16 or as codes, with their biases. It may be
// moved.
struct DeviceMatrices {
  cuda::DeviceBuffer memory;
  cuda::DeviceBuffer bias;                  // f32 [experts][outputs], or empty
  std::vector<cuda::WeightCodes> sections;  // of the first expert's codes
  cuda::GroupedWeight weight;

  size_t bytes() const { return memory.bytes() + bias.bytes(); }
  // The size of one matrix in bf16.
  size_t ExpandedBytes() const { return cuda::ExpandedBytes(weight.Of(0)); }
};

// Owns the routed experts of a layer in device memory. The shared expert is a dense MLP.
struct DeviceExperts {
  // F32 [experts, and one more if the shared expert has a gate][hidden].
  cuda::DeviceBuffer router;
  cuda::DeviceBuffer router_bias;  // f32 [experts], or empty
  cuda::DeviceBuffer choice_bias;  // f32 [experts], or empty
  DeviceMatrices gate_up;          // all rows of gate, then all of up
  DeviceMatrices down;
  bool shared = false;  // the layer has a shared expert
  bool shared_gate = false;

  size_t bytes() const {
    return router.bytes() + router_bias.bytes() + choice_bias.bytes() + gate_up.bytes() +
           down.bytes();
  }
};

// Owns the memory that layers with experts use in a step, one after the other.
struct ExpertScratch {
  // For steps of up to `rows` rows of these layers, of which there is at least one.
  // RESOURCE_EXHAUSTED names the allocation.
  absl::Status Allocate(const ExpertConfig& config, const std::vector<const DeviceExperts*>& layers,
                        size_t rows);
  // For a product with `matrices`.
  cuda::GroupedRoom RoomFor(const DeviceMatrices& matrices, float* output) const;
  std::vector<const cuda::DeviceBuffer*> DeviceBuffers() const;

  cuda::DeviceBuffer scores;                            // f32 [rows][experts and a gate]
  cuda::DeviceBuffer chosen, weights;                   // [rows][experts per token]
  cuda::DeviceBuffer shared_weights;                    // f32 [rows]
  cuda::DeviceBuffer first, pair_rows, places, owners;  // GroupParams
  cuda::DeviceBuffer input;                             // bf16, of a grouped product
  cuda::DeviceBuffer expanded;  // bf16, of some experts' matrices; empty: none is quantised
  cuda::DeviceBuffer sums;      // f32 [rows][hidden]
};

}  // namespace penstock
