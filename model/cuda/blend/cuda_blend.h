#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/blend/move_tokens.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/kv_planes.h"
#include "model/forward/angle_table.h"

namespace penstock {

// The memory of blends (docs/adr/0059) on a GPU: moves tokens in its pages, which are in bf16, and
// tells how far the values that a step computes are from those that the pages had. All work is
// enqueued on the device's stream. On the runner's thread.
//
// This room, model/cuda/blend, has what blends add to the runner of a GPU. It may use base/,
// kernels/blend, kernels/cuda with its blend room, and model/forward (steps and
// angles).
class CudaBlend final : public TokenMover {
 public:
  struct Options {
    std::array<AngleTable*, 2> angles;  // of KeyRotations::tables; outlive this
    std::vector<int32_t> angles_of;     // KeyRotations::layers
    int64_t value_width = 0;            // kv_heads * head_dim
    int64_t rows_max = 0;               // of a step
  };
  // `device` outlives this. RESOURCE_EXHAUSTED that names the allocation.
  static absl::StatusOr<std::unique_ptr<CudaBlend>> Create(cuda::CudaDevice& device,
                                                           Options options);

  // The rotations that Options names, with this as their mover.
  KeyRotations rotations();
  void Move(const MoveTokensArgs& args) override;

  // Keeps the values that the pages have in a layer, in the slots of `rows` rows.
  void KeepValues(const cuda::KvPlanes& layer, const int64_t* slots, int64_t rows);
  // Adds up, for each of the same rows, the sums of the squares of the differences from the kept
  // values, and of the values that the pages have now, [rows][2]. Waits for the device. The result
  // stays valid until the next call. INTERNAL reports a CUDA error.
  absl::StatusOr<std::span<const float>> CompareValues(const cuda::KvPlanes& layer,
                                                       const int64_t* slots, int64_t rows);

 private:
  static constexpr int64_t kMovedAtOnce = 512;  // tokens

  CudaBlend(cuda::CudaDevice& device, Options options)
      : device_(device), options_(std::move(options)) {}
  absl::Status Allocate();
  void MoveSome(const MoveTokensArgs& args, int64_t first, int64_t count);

  cuda::CudaDevice& device_;
  const Options options_;
  cuda::DeviceBuffer kept_;     // bf16, [rows][value_width]
  cuda::DeviceBuffer squares_;  // f32, [rows][2]
  cuda::PinnedBuffer squares_here_;
  cuda::DeviceBuffer moves_;  // slots and rotations of kMovedAtOnce tokens
};

}  // namespace penstock
