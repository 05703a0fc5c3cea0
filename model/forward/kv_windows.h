#pragma once

#include <algorithm>

#include "kernels/window_group.h"
#include "model/checkpoint/model_config.h"

namespace penstock {

// The layers with a window of a model whose other layers have none. Empty for other models.
inline WindowGroup WindowGroupOf(const ModelConfig& config) {
  const auto& windows = config.sliding_window;
  const int32_t most = windows.empty() ? 0 : *std::max_element(windows.begin(), windows.end());
  if (most == 0 || config.WindowOfAllLayers() > 0) return {};
  WindowGroup group{.window = most};
  for (size_t layer = 0; layer < windows.size(); ++layer)
    group.layers.set(layer, windows[layer] > 0);
  return group;
}

}  // namespace penstock
