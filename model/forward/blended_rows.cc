#include "model/forward/blended_rows.h"

#include <algorithm>

#include "kernels/blend/deviation.h"

namespace penstock {

bool CanBlend(const ModelConfig& config) {
  const auto& windows = config.sliding_window;
  return !config.HasLatents() && !config.use_mtp && config.layers > kCheckedLayer + 1 &&
         std::ranges::count(windows, 0) == std::ssize(windows);
}

std::vector<int32_t> RotationsOfLayers(const ModelConfig& config) {
  std::vector<int32_t> tables;
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    const LayerRope rope = config.RopeOf(layer);
    tables.push_back(rope == LayerRope::kNone ? -1 : rope == LayerRope::kLocal ? 1 : 0);
  }
  return tables;
}

std::vector<uint32_t> ChooseBlended(std::span<const float> tokens, float relative,
                                    BlendedTokens& blended) {
  const bool near = relative <= blended.deviation_max;
  std::vector<uint32_t> rows =
      MostDeviating(tokens, near ? int64_t{blended.recompute} : std::ssize(tokens));
  blended.deviation = relative;
  blended.recomputed = static_cast<int32_t>(rows.size());
  return rows;
}

}  // namespace penstock
