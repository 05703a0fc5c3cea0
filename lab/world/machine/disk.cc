// The disks of the world's machine: real files, reached by system calls that take simulated time
// and fail on demand. A write may be short, so that a crash leaves a part of it.
#include "lab/world/machine/disk.h"

#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <utility>

#include "lab/world/machine/network.h"

namespace penstock::world {
namespace {

std::map<int, DiskFaults> g_faults;
// Who holds an exclusive lock of a file. A dead process holds none.
std::map<std::pair<dev_t, ino_t>, const Process*> g_locks;

constexpr uint64_t kRotten = 200;  // reads with a flipped bit, of 1000
constexpr uint64_t kShort = 100;   // writes that move one piece only

const Process* Asking() {
  const Scheduler* const scheduler = Scheduler::current();
  return scheduler == nullptr ? nullptr : scheduler->process();
}

// The time of an operation; then its error, or 0.
int TakeTime(bool write) {
  const Process* const process = Asking();
  if (process == nullptr) return 0;
  Network& network = Network::current();
  const Duration time =
      network.random().Between(std::chrono::microseconds(50), std::chrono::microseconds(600));
  network.scheduler().Sleep(std::chrono::duration_cast<Duration>(time * process->slowness));
  const DiskFaults& faults = DiskOf(process->host);
  if (faults.fails) return EIO;
  return write && faults.full ? ENOSPC : 0;
}

bool Draw(uint64_t of_1000) {
  return Asking() != nullptr && Network::current().random().Chance(of_1000);
}

void Rot(const iovec* pieces, int count) {
  if (Asking() == nullptr || !DiskOf(Asking()->host).rots || !Draw(kRotten)) return;
  Random& random = Network::current().random();
  const iovec& piece = pieces[random.Below(static_cast<uint64_t>(count))];
  if (piece.iov_len > 0) static_cast<char*>(piece.iov_base)[random.Below(piece.iov_len)] ^= 4;
}

int Lock(int file, int operation) {
  struct stat found {};
  if (fstat(file, &found) != 0) return -1;
  const Process*& holder = g_locks[{found.st_dev, found.st_ino}];
  if (holder != nullptr && holder->alive && holder != Asking()) {
    errno = EWOULDBLOCK;
    return -1;
  }
  if ((operation & LOCK_EX) != 0) holder = Asking();
  return 0;
}

}  // namespace

DiskFaults& DiskOf(int host) { return g_faults[host]; }
std::string DisksOf(int process_id) {
  return fmt::format("/dev/shm/penstock-world-{}", process_id);
}
std::string DiskPath(int host) { return fmt::format("{}/{}", DisksOf(getpid()), host); }

}  // namespace penstock::world

namespace world = penstock::world;

extern "C" ssize_t preadv(int file, const iovec* pieces, int count, off_t offset) {
  if (const int error = world::TakeTime(false)) {
    errno = error;
    return -1;
  }
  const ssize_t got = syscall(SYS_preadv, file, pieces, count, offset, 0);
  if (got > 0) world::Rot(pieces, count);
  return got;
}

extern "C" ssize_t pwritev(int file, const iovec* pieces, int count, off_t offset) {
  if (const int error = world::TakeTime(true)) {
    errno = error;
    return -1;
  }
  const int moved = count > 1 && world::Draw(world::kShort) ? 1 : count;
  return syscall(SYS_pwritev, file, pieces, moved, offset, 0);
}

extern "C" int fallocate(int file, int mode, off_t offset, off_t size) {
  if (const int error = world::TakeTime(true)) {
    errno = error;
    return -1;
  }
  return static_cast<int>(syscall(SYS_fallocate, file, mode, offset, size));
}

extern "C" int fsync(int) {
  const int error = world::TakeTime(true);
  errno = error;
  return error == 0 ? 0 : -1;
}

extern "C" int flock(int file, int operation) noexcept { return world::Lock(file, operation); }
