#pragma once

#include <memory>
#include <vector>

#include "kernels/cuda/cuda_device.h"
#include "model/cuda/cuda_weights.h"

namespace penstock {

class CudaEvent {
 public:
  CudaEvent() : event_(cuda::CreateEvent()) {}
  ~CudaEvent() { cuda::DestroyEvent(event_); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  void* get() const { return event_; }

 private:
  void* event_;
};

// Memory that a CudaRunner's steps work in, one after the other.
struct CudaScratch {
  // What steps of `rows` need whatever they are; RESOURCE_EXHAUSTED names what found no room.
  absl::Status Allocate(const ModelConfig& config, const CudaWeights& weights, size_t rows);
  size_t device_bytes() const;
  // Of all that kernels are given: what changes them makes graphs useless.
  std::vector<const void*> Addresses() const;

  std::vector<float> frequencies;              // of the rotation
  std::vector<int32_t> windows;                // each that some layer has, ascending
  cuda::DeviceBuffer residual, last_residual;  // f32 [tokens][hidden]
  cuda::DeviceBuffer input;                    // bf16, of a product
  cuda::DeviceBuffer queries, last_queries;    // bf16 [tokens][heads * head_dim]
  cuda::DeviceBuffer product;                  // f32 slices
  cuda::DeviceBuffer inputs;                   // StepInputs
  cuda::DeviceBuffer partials, stats;          // of split attention
  cuda::DeviceBuffer sampled;                  // SampledRow of each draw
  cuda::PinnedBuffer inputs_here;              // what goes to `inputs`
  cuda::PinnedBuffer logits;                   // f32 rows
  cuda::PinnedBuffer drawn;                    // `sampled`, on the host
  std::vector<std::unique_ptr<CudaEvent>> group_done;

 private:
  std::vector<const cuda::DeviceBuffer*> DeviceBuffers() const;
};

// Room for `bytes`, of whatever `buffer` held before or of nothing.
template <class AnyBuffer>
absl::Status Grow(AnyBuffer& buffer, size_t bytes, const char* what) {
  if (buffer.bytes() >= bytes) return absl::OkStatus();
  buffer = AnyBuffer();
  ASSIGN_OR_RETURN(buffer, AnyBuffer::Create(bytes, what));
  return absl::OkStatus();
}

}  // namespace penstock
