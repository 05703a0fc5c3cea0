#pragma once

#include <cstdint>
#include <string>

namespace penstock {

enum class WindowedLayersOf { kAll, kAllButThird };

// Writes the bundled model to `folder` as a Mistral whose layers have a sliding window, all of its
// five or all but the third one, with room for long prompts.
void WriteWindowModel(const std::string& folder, int32_t window,
                      WindowedLayersOf layers = WindowedLayersOf::kAll);

}  // namespace penstock
