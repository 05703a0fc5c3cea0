#pragma once

#include <cstddef>
#include <map>

// One emulated device's ordinary memory.

namespace penstock::cuda::emulator {

// Memory in one mapping of huge pages, so that one short call opens or closes all of it for the
// whole process. AddressSanitizer takes each allocation for one of the heap. Not thread-safe.
class DeviceArena {
 public:
  DeviceArena();  // closed; stays mapped as long as the process runs
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;

  // Returns memory aligned to 256 bytes; nullptr if there is none left.
  void* Allocate(size_t bytes);
  void Free(void* p);
  // While the arena is closed, any access to it is a segmentation fault.
  void SetOpen(bool open);
  bool Contains(const void* p) const;

 private:
  static constexpr size_t kBytes = size_t{16} << 30;  // of addresses
  static constexpr size_t kPage = size_t{2} << 20;    // a huge page

  // Makes the first `end` bytes usable.
  void Grow(size_t end);
  void Protect() const;

  std::byte* begin_ = nullptr;
  size_t used_ = 0;  // whole pages; above is never open
  bool open_ = false;
  std::map<size_t, size_t> allocations_;  // the end of each, with a gap, by its offset
};

}  // namespace penstock::cuda::emulator
