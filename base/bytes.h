#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace penstock {

// Parses "512MiB", "1.5 GiB", "64KB" or "4096B" into bytes. Returns INVALID_ARGUMENT, with a
// correction, for a number without a unit, an incomplete unit or a size of 2^63 or more.
absl::StatusOr<uint64_t> ParseBytes(std::string_view text);

// Formats bytes for people: "512 MiB", "1.5 GiB", "37 B".
std::string FormatBytes(uint64_t bytes);

}  // namespace penstock
