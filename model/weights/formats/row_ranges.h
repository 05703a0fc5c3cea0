#pragma once

#include <cstdint>
#include <functional>

#include "base/status.h"

namespace penstock {

// Calls run(first, last) for equal ranges of rows [0, rows), each on a thread of its own, at most
// `threads`, and waits for all. Returns the error of the first range that has one.
absl::Status ForRowRanges(int threads, int64_t rows,
                          const std::function<absl::Status(int64_t first, int64_t last)>& run);

}  // namespace penstock
