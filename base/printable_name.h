#pragma once

#include <string>
#include <string_view>

namespace penstock {

// Formats a name that a file gives for an error message: quoted, control characters replaced, at
// most 80 bytes.
std::string PrintableName(std::string_view name);

}  // namespace penstock
