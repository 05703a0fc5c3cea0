#pragma once

#include <cstdint>
#include <string>

namespace penstock {

enum class WindowedLayersOf { kAll, kAllButThird, kNone };

// Writes the bundled model to `folder` as a Mistral with room for long prompts, whose layers have a
// sliding window: all of its five, all but the third one, or none.
void WriteWindowModel(const std::string& folder, int32_t window,
                      WindowedLayersOf layers = WindowedLayersOf::kAll);

}  // namespace penstock
