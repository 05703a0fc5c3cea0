#pragma once

#include <string>

namespace penstock {

// Writes the bundled model to `folder` with further layers, up to `layers` in all, that add nothing
// to what goes through them: its logits, at the cost of a larger model.
void WriteDeepModel(const std::string& folder, int layers);

}  // namespace penstock
