#pragma once

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

namespace penstock {

// The files without a name in `directory` that a process has open, as paths that open them:
// "/proc/<process>/fd/<n>". `process` is a process id or "self".
inline std::vector<std::string> UnnamedFiles(const std::string& process,
                                             const std::string& directory) {
  std::vector<std::string> found;
  std::error_code ignored;  // of descriptors that close meanwhile
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + process + "/fd")) {
    const std::string target = std::filesystem::read_symlink(entry.path(), ignored);
    if (target.starts_with(directory + "/") && target.ends_with(" (deleted)")) {
      found.push_back(entry.path());
    }
  }
  return found;
}

}  // namespace penstock
