#pragma once

#include <string>

#include "base/status.h"

namespace penstock {

// The status of an errno: RESOURCE_EXHAUSTED for a full disk, a quota, or a file larger than the
// process may write; PERMISSION_DENIED for missing permission; NOT_FOUND; else UNAVAILABLE. The
// text is "WHAT: the system's words".
absl::Status ErrnoStatus(int error, const std::string& what);

}  // namespace penstock
