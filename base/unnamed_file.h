#pragma once

#include <string>

#include "base/owned_fd.h"
#include "base/status.h"

namespace penstock {

// Opens a new file in `directory` that has no name there, so its space is free when the process
// ends, in whatever way. Only its owner may read it. `content` is for the error, "pages of KV".
absl::StatusOr<OwnedFd> OpenUnnamedFile(const std::string& directory, const std::string& content);
// The same, and reads and writes bypass the system's page cache where the file system can do that.
absl::StatusOr<OwnedFd> OpenUnnamedDirectFile(const std::string& directory,
                                              const std::string& content);

}  // namespace penstock
