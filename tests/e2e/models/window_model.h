#pragma once

#include <cstdint>
#include <string>

namespace penstock {

// Writes the bundled model to `folder` as a Mistral whose layers all have a sliding window, with
// room for long prompts.
void WriteWindowModel(const std::string& folder, int32_t window);

}  // namespace penstock
