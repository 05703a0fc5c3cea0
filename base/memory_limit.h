#pragma once

#include <cstdint>
#include <string>

namespace penstock {

// The memory that a process may use, and what limits it.
struct MemoryLimit {
  uint64_t bytes = UINT64_MAX;  // UINT64_MAX: unknown
  std::string source;           // for people: "the memory of this machine", or the cgroup's file
};

// The least of the machine's memory and the limits of this process's cgroups (v1 and v2), read from
// `root`'s proc/ and sys/fs/cgroup/. Files that are missing or malformed limit nothing.
MemoryLimit ReadMemoryLimit(const std::string& root = "/");

}  // namespace penstock
