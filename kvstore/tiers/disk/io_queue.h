#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace penstock {

// A read or write of a file opened with O_DIRECT: offset, addresses and lengths are multiples of
// 4,096. At most kIoPiecesMax pieces.
struct IoRequest {
  bool write = false;
  int fd = -1;
  uint64_t offset = 0;
  std::vector<iovec> pieces;
  // OK only when every byte was moved. Called by Poll.
  std::function<void(const absl::Status&)> done;
};
inline constexpr size_t kIoPiecesMax = 64;
// Leaves of a request what is still to do after its first `bytes`, fewer than all, were moved.
void Shorten(IoRequest& request, size_t bytes);

// Asynchronous file I/O for one thread, which is also how that thread waits. A seam: tests put
// errors and delays in between.
class IoQueue {
 public:
  virtual ~IoQueue() = default;  // Poll until open() is 0 before.

  // How it is done: "io_uring" or "threads".
  virtual const char* backend() const = 0;
  // The owner's thread. Never fails: what cannot be started ends at `done`. Requests beyond what
  // the system takes at once wait in line.
  virtual void Submit(IoRequest request) = 0;
  // Runs `work` on another thread, one after the other, and `done` in Poll after it: for calls that
  // may block on the disk.
  virtual void Run(std::function<void()> work, std::function<void()> done) = 0;
  // Runs what is done; waits up to `patience` for the first of it, or for Wake.
  virtual void Poll(Duration patience) = 0;
  // Requests and works whose `done` has not run.
  virtual size_t open() const = 0;

  // Any thread: Poll returns soon, now or next time.
  virtual void Wake() = 0;
};

enum class IoBackend { kAuto, kUring, kThreads };
// FAILED_PRECONDITION when io_uring is asked for and the system refuses it (a container's seccomp
// profile often does); kAuto takes threads then.
absl::StatusOr<std::unique_ptr<IoQueue>> MakeIoQueue(IoBackend backend);

// Its two kinds.
std::unique_ptr<IoQueue> MakeThreadIoQueue(int threads);
absl::StatusOr<std::unique_ptr<IoQueue>> MakeUringIoQueue();

// "auto", "uring" or "threads".
absl::StatusOr<IoBackend> ParseIoBackend(const std::string& name);

// The status for an errno: RESOURCE_EXHAUSTED for a full disk or quota, PERMISSION_DENIED for what
// may not be written, NOT_FOUND, else UNAVAILABLE.
absl::Status ErrnoStatus(int error, const std::string& what);

}  // namespace penstock
