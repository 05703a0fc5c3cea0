#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "kernels/bf16.h"
#include "kernels/cuda/cuda_device.h"
#include "model/checkpoint/model_config.h"
#include "model/weights/model_shard.h"
#include "model/weights/weights.h"

namespace penstock {

// This room, model/cuda/centred, has the memory on a GPU that only pages with centred keys need. It
// may use base/, kernels/, kernels/cuda, model/checkpoint, model/forward and model/weights. It does
// not know steps.

// Owns the means of a model's keys in device memory, the angles of all its positions, and a step's
// centre queries (kernels/cuda/row_params.h). The means and angles are immutable. Means and queries
// are those of a shard's heads, and all shards have the same angles.
class DeviceCentre {
 public:
  // `weights` have means, and are not needed afterwards. `rows` is the most of a step. Returns
  // RESOURCE_EXHAUSTED that names the allocation.
  static absl::StatusOr<std::unique_ptr<DeviceCentre>> Create(const Weights& weights,
                                                              const ModelShard& shard, size_t rows,
                                                              void* stream);

  const float* MeansOf(int32_t layer) const {  // [kv_heads][head_dim], before rotation
    return means_[static_cast<size_t>(layer)].as<float>();
  }
  // By cuda::AngleAt. Layers with the same rotation share them.
  const Bf16* AnglesOf(LayerRope rope) const {
    return angles_[static_cast<size_t>(rope)].as<Bf16>();
  }
  Bf16* queries() const { return queries_.as<Bf16>(); }            // [rows][heads][head_dim]
  Bf16* last_queries() const { return last_queries_.as<Bf16>(); }  // those of the last layer

 private:
  std::vector<cuda::DeviceBuffer> means_;     // of each layer
  std::array<cuda::DeviceBuffer, 3> angles_;  // by LayerRope; empty where no layer has it
  cuda::DeviceBuffer queries_, last_queries_;
};

}  // namespace penstock
