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
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/mutex.h"
#include "tests/cuda/emulator/access_fault.h"
#include "tests/cuda/emulator/device_arena.h"

namespace penstock::cuda::emulator {
namespace {

// Memory for wires. Each range is mapped twice: for the device, and for hardware.
struct Stretch {
  int device = 0;
  std::byte* hardware = nullptr;
  size_t bytes = 0;
  int fd = -1;
  uint64_t number = 0;
  bool open = false;    // it can be accessed
  bool astray = false;  // what is written now is lost
};
struct Memory {
  Mutex mutex;
  std::map<int, DeviceArena> arenas GUARDED_BY(mutex);        // by device
  std::map<std::byte*, Stretch> stretches GUARDED_BY(mutex);  // keyed by the device's address
  std::map<int, int> at_work GUARDED_BY(mutex);               // pieces of work, by device
  std::set<std::pair<int, int>> peers GUARDED_BY(mutex);      // device, and peer that it accesses
  uint64_t last_number GUARDED_BY(mutex) = 0;
};
Memory& memory() {
  static auto* memory = new Memory();
  return *memory;
}

thread_local int working = -1;  // device at work in this thread, or -1

bool ArePeersAstray() {
  const char* setting = std::getenv("PENSTOCK_EMULATED_PEERS");
  return setting != nullptr && setting == std::string_view("astray");
}

// Opens the stretch, or closes it. `astray`: a copy of it that is dropped when it is closed.
void SetOpen(std::byte* p, Stretch& stretch, bool open, bool astray) {
  if (open == stretch.open) return;
  stretch.open = open;
  const int access = open ? PROT_READ | PROT_WRITE : PROT_NONE;
  if (open ? !astray : !stretch.astray) {
    PENSTOCK_CHECK_EQ(mprotect(p, stretch.bytes, access), 0);
    return;
  }
  stretch.astray = open;
  const int sharing = open ? MAP_PRIVATE : MAP_SHARED;
  PENSTOCK_CHECK(mmap(p, stretch.bytes, access, sharing | MAP_FIXED, stretch.fd, 0) == p);
}

// Devices at work that may access a device's memory.
struct Accessors {
  bool owner = false;
  bool any = false;
};
Accessors AccessorsOf(int owner) REQUIRES(memory().mutex) {
  Accessors accessors;
  for (const auto& [device, works] : memory().at_work) {
    if (works == 0) continue;
    accessors.owner |= device == owner;
    accessors.any |= device == owner || memory().peers.contains({device, owner});
  }
  return accessors;
}

// Opens and closes memory as the devices at work may access it.
void Protect() REQUIRES(memory().mutex) {
  for (auto& [device, arena] : memory().arenas) arena.SetOpen(AccessorsOf(device).any);
  for (auto& [p, stretch] : memory().stretches) {
    const Accessors accessors = AccessorsOf(stretch.device);
    const bool small = stretch.bytes < size_t{2} << 20;
    SetOpen(p, stretch, accessors.any, small && !accessors.owner && ArePeersAstray());
  }
}

// The stretch that has `p`, or the end.
std::map<std::byte*, Stretch>::iterator StretchOf(std::byte* p) REQUIRES(memory().mutex) {
  auto& stretches = memory().stretches;
  const auto after = stretches.upper_bound(p);
  if (after == stretches.begin()) return stretches.end();
  const auto before = std::prev(after);
  return p < before->first + before->second.bytes ? before : stretches.end();
}

// Takes the lock: the code that has it accesses no device's memory.
AccessFault FaultAt(const void* p) {
  MutexLock lock(memory().mutex);
  for (const auto& [device, arena] : memory().arenas) {
    if (arena.Contains(p)) return {.device = device, .by = working};
  }
  const auto found = StretchOf(static_cast<std::byte*>(const_cast<void*>(p)));
  if (found == memory().stretches.end()) return {};
  return {.device = found->second.device, .by = working};
}

// Takes ownership of `fd`, unless it returns nullptr.
void* Map(int device, int fd, size_t bytes) {
  void* hardware = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  void* own = mmap(nullptr, bytes, PROT_NONE, MAP_SHARED, fd, 0);
  if (hardware == MAP_FAILED || own == MAP_FAILED) return nullptr;
  MutexLock lock(memory().mutex);
  ReportAccessFaults(&FaultAt);
  auto* const at = static_cast<std::byte*>(own);
  memory().stretches[at] = {.device = device,
                            .hardware = static_cast<std::byte*>(hardware),
                            .bytes = bytes,
                            .fd = fd,
                            .number = ++memory().last_number};
  Protect();
  return own;
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

}  // namespace

void* AllocateOn(int device, size_t bytes) {
  void* p = nullptr;
  {
    MutexLock lock(memory().mutex);
    ReportAccessFaults(&FaultAt);
    p = memory().arenas[device].Allocate(bytes);
    Protect();  // A new arena is closed, and the device may be at work.
  }
  if (p == nullptr) return nullptr;
  const DeviceAtWork at_work(device);
  std::memset(p, 0xff, bytes);  // NaN for any reader before the first write
  return p;
}

void FreeOn(int device, void* p) {
  MutexLock lock(memory().mutex);
  memory().arenas.at(device).Free(p);
}

void* MapForWires(int device, size_t bytes) {
  const int fd = memfd_create("penstock-device", MFD_CLOEXEC);
  if (fd < 0) return nullptr;
  const bool sized = ftruncate(fd, static_cast<off_t>(bytes)) == 0;
  void* const mapped = sized ? Map(device, fd, bytes) : nullptr;
  if (mapped == nullptr) {
    close(fd);
    return nullptr;
  }
  std::memset(SeenByHardware(mapped), 0xff, bytes);
  return mapped;
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

void* Import(int device, const ExportName& name, size_t bytes) {
  const char* setting = std::getenv("PENSTOCK_EMULATED_IMPORTS");
  const std::string_view how = setting == nullptr ? "" : setting;
  const bool large = bytes > size_t{4} << 20;
  if (how == "refused" || (large && how == "large refused")) return nullptr;
  if (how == "astray" || (large && how == "large astray")) return MapForWires(device, bytes);
  const std::string path(name.data(), strnlen(name.data(), name.size()));
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  struct stat file {};
  const bool whole = fstat(fd, &file) == 0 && static_cast<size_t>(file.st_size) == bytes;
  void* const mapped = whole ? Map(device, fd, bytes) : nullptr;
  if (mapped == nullptr) {
    close(fd);
    return nullptr;
  }
  return mapped;
}

void ReleaseImport(void* p, size_t bytes) { Unmap(p, bytes); }

bool AllowPeer(int device, int peer) {
  const char* setting = std::getenv("PENSTOCK_EMULATED_PEERS");
  if (setting != nullptr && setting == std::string_view("refused")) return false;
  MutexLock lock(memory().mutex);
  memory().peers.insert({device, peer});
  return true;
}

DeviceAtWork::DeviceAtWork(int device) : device_(device), before_(std::exchange(working, device)) {
  MutexLock lock(memory().mutex);
  if (memory().at_work[device_]++ == 0) Protect();
}

DeviceAtWork::~DeviceAtWork() {
  working = before_;
  MutexLock lock(memory().mutex);
  if (--memory().at_work[device_] == 0) Protect();
}

std::byte* SeenByHardware(const void* p) {
  auto* const byte = static_cast<std::byte*>(const_cast<void*>(p));
  MutexLock lock(memory().mutex);
  const auto found = StretchOf(byte);
  return found == memory().stretches.end() ? byte : found->second.hardware + (byte - found->first);
}

}  // namespace penstock::cuda::emulator
