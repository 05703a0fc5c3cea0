#pragma once

#include <memory>
#include <vector>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/products.h"
#include "model/cuda/cuda_weights.h"
#include "model/forward/angle_table.h"

namespace penstock {

// Owns a CUDA event.
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

// The width of all heads' queries.
inline int64_t QueryWidth(const ModelConfig& config) {
  return int64_t{config.heads} *
         (config.HasLatents() ? config.latent.QueryDims() : config.head_dim);
}

// Owns the memory that a CudaRunner's steps use, one step after the other.
struct CudaScratch {
  // Allocates the memory that every step of up to `rows` rows needs. Returns RESOURCE_EXHAUSTED
  // that names the allocation.
  absl::Status Allocate(const ModelConfig& config, const CudaWeights& weights,
                        const cuda::Products& products, size_t rows);
  // The addresses that kernels receive. Graphs become invalid when one of them changes.
  std::vector<const void*> Addresses() const;

  AngleTable angles;                           // of the rotation
  AngleTable local_angles;                     // of layers with LayerRope::kLocal
  cuda::DeviceBuffer residual, last_residual;  // f32 [tokens][hidden]
  cuda::DeviceBuffer input;                    // bf16, input of a product
  cuda::DeviceBuffer queries, last_queries;    // bf16 [tokens][QueryWidth]
  cuda::DeviceBuffer product;                  // f32 slices
  cuda::DeviceBuffer expanded;                 // bf16, of the quantised matrix in use
  ExpertScratch experts;                       // of layers with experts
  LatentScratch latents;                       // of latent attention
  cuda::DeviceBuffer inputs;                   // StepInputs
  cuda::DeviceBuffer wide_attention;           // sums of splits, of wide tiles
  cuda::DeviceBuffer narrow_attention;         // and of narrow ones
  cuda::DeviceBuffer draws;                    // scratch memory of draws
  cuda::DeviceBuffer sampled;                  // SampledRow of each draw
  cuda::PinnedBuffer inputs_here;              // staging memory of `inputs`
  cuda::PinnedBuffer logits;                   // f32 rows
  cuda::PinnedBuffer drawn;                    // `sampled` on the host
  cuda::PinnedBuffer hidden_states;            // bf16, of CudaBatch::hidden, in order
  std::vector<std::unique_ptr<CudaEvent>> group_done;

 private:
  std::vector<const cuda::DeviceBuffer*> DeviceBuffers() const;
};

// Replaces `buffer` by a larger one if it has less than `bytes`; its contents are lost.
template <class AnyBuffer>
absl::Status Grow(AnyBuffer& buffer, size_t bytes, const char* what) {
  if (buffer.bytes() >= bytes) return absl::OkStatus();
  buffer = AnyBuffer();
  ASSIGN_OR_RETURN(buffer, AnyBuffer::Create(bytes, what));
  return absl::OkStatus();
}

}  // namespace penstock
