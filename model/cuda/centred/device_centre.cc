#include "model/cuda/centred/device_centre.h"

#include <utility>

#include "kernels/cuda/angle_order.h"
#include "model/forward/rope_angles.h"

namespace penstock {
namespace {

template <class T>
absl::StatusOr<cuda::DeviceBuffer> Upload(const std::vector<T>& values, const char* what,
                                          void* stream) {
  const size_t bytes = values.size() * sizeof(T);
  ASSIGN_OR_RETURN(cuda::DeviceBuffer buffer, cuda::DeviceBuffer::Create(bytes, what));
  cuda::CopyToDevice(buffer.as<void>(), values.data(), bytes, stream);
  return buffer;
}

// The means of the shard's KV heads, of `all` [kv_heads][head_dim].
std::vector<float> MeansOfShard(const std::vector<float>& all, const ModelConfig& own,
                                const ModelShard& shard) {
  const auto count = ptrdiff_t{own.kv_heads} * own.head_dim;
  const auto first = all.begin() + shard.rank * count;
  return {first, first + count};
}

// The angles of all positions in the order of the kernels; 0 behind the last position.
std::vector<Bf16> PackAngles(const LayerRotation& rotation, const ModelConfig& config) {
  const auto dim = static_cast<size_t>(config.head_dim), pairs = rotation.frequencies.size();
  std::vector<Bf16> packed(
      static_cast<size_t>(cuda::AngleElements(config.max_position, config.head_dim)));
  std::vector<float> row(dim, 1.0f);
  for (int32_t position = 0; position < config.max_position; ++position) {
    RopeAngles(rotation.frequencies, rotation.attention_factor, position, row.data(),
               row.data() + pairs);
    for (int32_t d = 0; d < config.head_dim; ++d) {
      packed[static_cast<size_t>(cuda::AngleAt(position, d, config.head_dim))] =
          ToBf16(row[static_cast<size_t>(d)]);
    }
  }
  return packed;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceCentre>> DeviceCentre::Create(const Weights& weights,
                                                                   const ModelShard& shard,
                                                                   size_t rows, void* stream) {
  const ModelConfig config = shard.Of(weights.config);
  auto centre = std::make_unique<DeviceCentre>();
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    const std::vector<float> means =
        MeansOfShard(weights.layers[static_cast<size_t>(layer)].key_means, config, shard);
    ASSIGN_OR_RETURN(auto uploaded, Upload(means, "means of keys", stream));
    centre->means_.push_back(std::move(uploaded));
    cuda::DeviceBuffer& angles = centre->angles_[static_cast<size_t>(config.RopeOf(layer))];
    if (angles.bytes() > 0) continue;
    ASSIGN_OR_RETURN(angles, Upload(PackAngles(RotationOf(config, layer), config),
                                    "angles of positions", stream));
  }
  const size_t bytes = rows * static_cast<size_t>(config.heads) *
                       static_cast<size_t>(config.head_dim) * sizeof(Bf16);
  ASSIGN_OR_RETURN(centre->queries_, cuda::DeviceBuffer::Create(bytes, "centre queries"));
  ASSIGN_OR_RETURN(centre->last_queries_, cuda::DeviceBuffer::Create(bytes, "centre queries"));
  return centre;
}

}  // namespace penstock
