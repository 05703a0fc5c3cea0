#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/bf16.h"
#include "kernels/cuda/cuda_device.h"

namespace penstock {

// Owns the norms around the layer for multi-token prediction in device memory, f32 [hidden], as in
// MtpWeights. All are empty without such a layer.
struct DeviceMtp {
  cuda::DeviceBuffer token_norm, hidden_norm, norm;

  size_t bytes() const { return token_norm.bytes() + hidden_norm.bytes() + norm.bytes(); }
};

// Enqueues the parts of the layer's input. All memory is the caller's, on the device.
class MtpPass {
 public:
  struct Parts {
    const DeviceMtp& weights;
    int32_t hidden = 0;
    float epsilon = 1e-5f;
    int32_t rows = 0;
    float* states = nullptr;  // f32 [rows][hidden], the hidden states before the rows
    void* stream = nullptr;
  };
  // All parts outlive this object.
  explicit MtpPass(const Parts& parts) : parts_(parts) {}

  // Sets each row's state to row `from[row]` of `all`, bf16 [*][hidden].
  void GatherStates(const Bf16* all, const uint32_t* from) const;
  // Sets the states of `count` rows from `first` on, f32 [count][hidden].
  void PutStates(const float* states, int64_t first, int64_t count) const;
  // Writes the norms of the embeddings, f32 [rows][hidden], and of the states beside them to
  // `output`, bf16 [rows][2 * hidden]. `normed` is memory of the same size; `order` is
  // MtpRows::JoinedOrder.
  void Join(float* embeddings, const int32_t* order, Bf16* normed, Bf16* output) const;

 private:
  const Parts parts_;
};

}  // namespace penstock
