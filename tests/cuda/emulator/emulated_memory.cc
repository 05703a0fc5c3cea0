#include "tests/cuda/emulator/emulated_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>

#include "base/check.h"
#include "base/mutex.h"

namespace penstock::cuda::emulator {
namespace {

// Each range is mapped twice: for the device, and for hardware.
struct Stretch {
  std::byte* hardware = nullptr;
  size_t bytes = 0;
};
struct Memory {
  Mutex mutex;
  std::map<std::byte*, Stretch> stretches GUARDED_BY(mutex);  // keyed by the device's address
  int at_work GUARDED_BY(mutex) = 0;
};
Memory& memory() {
  static auto* memory = new Memory();
  return *memory;
}

void Protect(std::byte* p, size_t bytes, int access) {
  PENSTOCK_CHECK_EQ(mprotect(p, bytes, access), 0);
}

}  // namespace

void* MapForWires(size_t bytes) {
  const int fd = memfd_create("penstock-device", MFD_CLOEXEC);
  if (fd < 0) return nullptr;
  void* hardware = MAP_FAILED;
  void* device = MAP_FAILED;
  if (ftruncate(fd, static_cast<off_t>(bytes)) == 0) {
    hardware = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    device = mmap(nullptr, bytes, PROT_NONE, MAP_SHARED, fd, 0);
  }
  close(fd);
  if (hardware == MAP_FAILED || device == MAP_FAILED) return nullptr;
  std::memset(hardware, 0xff, bytes);
  MutexLock lock(memory().mutex);
  auto* const at = static_cast<std::byte*>(device);
  memory().stretches[at] = {.hardware = static_cast<std::byte*>(hardware), .bytes = bytes};
  if (memory().at_work > 0) Protect(at, bytes, PROT_READ | PROT_WRITE);
  return device;
}

void UnmapForWires(void* p, size_t bytes) {
  MutexLock lock(memory().mutex);
  const auto found = memory().stretches.find(static_cast<std::byte*>(p));
  PENSTOCK_CHECK(found != memory().stretches.end() && found->second.bytes == bytes);
  munmap(found->second.hardware, bytes);
  munmap(p, bytes);
  memory().stretches.erase(found);
}

DeviceAtWork::DeviceAtWork() {
  MutexLock lock(memory().mutex);
  if (memory().at_work++ > 0) return;
  for (const auto& [p, stretch] : memory().stretches) {
    Protect(p, stretch.bytes, PROT_READ | PROT_WRITE);
  }
}

DeviceAtWork::~DeviceAtWork() {
  MutexLock lock(memory().mutex);
  if (--memory().at_work > 0) return;
  for (const auto& [p, stretch] : memory().stretches) Protect(p, stretch.bytes, PROT_NONE);
}

std::byte* SeenByHardware(const void* p) {
  auto* const byte = static_cast<std::byte*>(const_cast<void*>(p));
  MutexLock lock(memory().mutex);
  auto after = memory().stretches.upper_bound(byte);
  if (after == memory().stretches.begin()) return byte;
  --after;
  const auto offset = static_cast<size_t>(byte - after->first);
  return offset < after->second.bytes ? after->second.hardware + offset : byte;
}

}  // namespace penstock::cuda::emulator
