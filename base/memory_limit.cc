#include "base/memory_limit.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

namespace penstock {
namespace {

namespace fs = std::filesystem;

void Lower(MemoryLimit& limit, uint64_t bytes, const std::string& source) {
  if (bytes < limit.bytes) limit = {.bytes = bytes, .source = source};
}

// A cgroup's limit holds for its children, too. The word "max" means no limit, as a number beyond
// the machine's memory does.
void LowerToGroups(MemoryLimit& limit, const fs::path& top, const std::string& group,
                   const char* file) {
  fs::path folder = top / fs::path(group).relative_path();
  while (true) {
    const fs::path path = folder / file;
    uint64_t bytes = 0;
    if (std::ifstream(path) >> bytes) Lower(limit, bytes, path.string());
    if (folder == top || !folder.has_relative_path()) return;
    folder = folder.parent_path();
  }
}

}  // namespace

MemoryLimit ReadMemoryLimit(const std::string& root) {
  MemoryLimit limit;
  const fs::path proc = fs::path(root) / "proc";
  const fs::path cgroups = fs::path(root) / "sys/fs/cgroup";
  std::ifstream meminfo(proc / "meminfo");
  std::string word;
  uint64_t kib = 0;
  if (meminfo >> word >> kib && word == "MemTotal:") {
    Lower(limit, kib * 1024, "the memory of this machine");
  }
  // Each line is number:controllers:group; version 2 names no controllers.
  std::ifstream lines(proc / "self/cgroup");
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string number, controllers, group;
    std::getline(fields, number, ':');
    std::getline(fields, controllers, ':');
    std::getline(fields, group);
    if (controllers.empty()) LowerToGroups(limit, cgroups, group, "memory.max");
    if (("," + controllers + ",").find(",memory,") != std::string::npos) {
      LowerToGroups(limit, cgroups / "memory", group, "memory.limit_in_bytes");
    }
  }
  return limit;
}

}  // namespace penstock
