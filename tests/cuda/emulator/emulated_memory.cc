#include "tests/cuda/emulator/emulated_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/mutex.h"

namespace penstock::cuda::emulator {
namespace {

// Each range is mapped twice: for the device, and for hardware.
struct Stretch {
  std::byte* hardware = nullptr;
  size_t bytes = 0;
  int fd = -1;
  uint64_t number = 0;
};
struct Memory {
  Mutex mutex;
  std::map<std::byte*, Stretch> stretches GUARDED_BY(mutex);  // keyed by the device's address
  int at_work GUARDED_BY(mutex) = 0;
  uint64_t last_number GUARDED_BY(mutex) = 0;
};
Memory& memory() {
  static auto* memory = new Memory();
  return *memory;
}

void Protect(std::byte* p, size_t bytes, int access) {
  PENSTOCK_CHECK_EQ(mprotect(p, bytes, access), 0);
}

// Takes ownership of `fd`, unless it returns nullptr.
void* Map(int fd, size_t bytes) {
  void* hardware = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  void* device = mmap(nullptr, bytes, PROT_NONE, MAP_SHARED, fd, 0);
  if (hardware == MAP_FAILED || device == MAP_FAILED) return nullptr;
  MutexLock lock(memory().mutex);
  auto* const at = static_cast<std::byte*>(device);
  memory().stretches[at] = {.hardware = static_cast<std::byte*>(hardware),
                            .bytes = bytes,
                            .fd = fd,
                            .number = ++memory().last_number};
  if (memory().at_work > 0) Protect(at, bytes, PROT_READ | PROT_WRITE);
  return device;
}

void Unmap(void* p, size_t bytes) {
  MutexLock lock(memory().mutex);
  const auto found = memory().stretches.find(static_cast<std::byte*>(p));
  PENSTOCK_CHECK(found != memory().stretches.end() && found->second.bytes == bytes);
  munmap(found->second.hardware, bytes);
  munmap(p, bytes);
  close(found->second.fd);
  memory().stretches.erase(found);
}

// The stretch that has `p`, or the end.
std::map<std::byte*, Stretch>::iterator StretchOf(std::byte* p) REQUIRES(memory().mutex) {
  auto& stretches = memory().stretches;
  const auto after = stretches.upper_bound(p);
  if (after == stretches.begin()) return stretches.end();
  const auto before = std::prev(after);
  return p < before->first + before->second.bytes ? before : stretches.end();
}

}  // namespace

void* MapForWires(size_t bytes) {
  const int fd = memfd_create("penstock-device", MFD_CLOEXEC);
  if (fd < 0) return nullptr;
  void* const device = ftruncate(fd, static_cast<off_t>(bytes)) == 0 ? Map(fd, bytes) : nullptr;
  if (device == nullptr) {
    close(fd);
    return nullptr;
  }
  std::memset(SeenByHardware(device), 0xff, bytes);
  return device;
}

void UnmapForWires(void* p, size_t bytes) { Unmap(p, bytes); }

bool Export(const void* p, ExportedMemory* exported) {
  MutexLock lock(memory().mutex);
  const auto found = StretchOf(static_cast<std::byte*>(const_cast<void*>(p)));
  if (found == memory().stretches.end() || found->second.fd < 0) return false;
  const Stretch& stretch = found->second;
  *exported = {.data = found->first, .bytes = stretch.bytes, .number = stretch.number};
  std::snprintf(exported->name.data(), exported->name.size(), "/proc/%d/fd/%d", getpid(),
                stretch.fd);
  return true;
}

void* Import(const ExportName& name, size_t bytes) {
  const char* setting = std::getenv("PENSTOCK_EMULATED_IMPORTS");
  const std::string_view how = setting == nullptr ? "" : setting;
  const bool large = bytes > size_t{4} << 20;
  if (how == "refused" || (large && how == "large refused")) return nullptr;
  if (how == "astray" || (large && how == "large astray")) return MapForWires(bytes);
  const std::string path(name.data(), strnlen(name.data(), name.size()));
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  struct stat file {};
  const bool whole = fstat(fd, &file) == 0 && static_cast<size_t>(file.st_size) == bytes;
  void* const device = whole ? Map(fd, bytes) : nullptr;
  if (device == nullptr) {
    close(fd);
    return nullptr;
  }
  return device;
}

void ReleaseImport(void* p, size_t bytes) { Unmap(p, bytes); }

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
  const auto found = StretchOf(byte);
  return found == memory().stretches.end() ? byte : found->second.hardware + (byte - found->first);
}

}  // namespace penstock::cuda::emulator
