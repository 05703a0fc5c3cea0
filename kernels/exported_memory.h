#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace penstock {

// A name of device memory with which another process of this host maps it (CUDA's IPC handle).
using ExportName = std::array<char, 64>;

// One allocation of device memory that other processes may map.
struct ExportedMemory {
  ExportName name{};
  const std::byte* data = nullptr;  // in this process
  size_t bytes = 0;
  uint64_t number = 0;  // never that of another allocation of this process
};

}  // namespace penstock
