#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace penstock {

// "512MiB", "1.5 GiB", "64KB", "4096B" in bytes. A number without a unit, a half-written unit and a
// size beyond 2^63 are INVALID_ARGUMENT, with what to write instead.
absl::StatusOr<uint64_t> ParseBytes(std::string_view text);

// The other way, for people: "512 MiB", "1.5 GiB", "37 B".
std::string FormatBytes(uint64_t bytes);

}  // namespace penstock
