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

// This room reaches the disk: asynchronous I/O, files with O_DIRECT, the store's directory with its
// locks, and the types that both tiers share. It knows nothing of segments, records or eviction.

// A read or write of a file opened with O_DIRECT. Offset, addresses and lengths are multiples of
// 4,096; at most kIoPiecesMax pieces.
struct IoRequest {
  bool write = false;
  int fd = -1;
  uint64_t offset = 0;
  std::vector<iovec> pieces;
  // OK only when every byte was moved. Called by Poll.
  std::function<void(const absl::Status&)> done;
};
inline constexpr size_t kIoPiecesMax = 64;
// Removes the first `bytes` bytes of a request, which were moved; fewer than all.
void Shorten(IoRequest& request, size_t bytes);

// Asynchronous file I/O for one thread, which also waits in Poll. An interface: tests inject errors
// and delays.
class IoQueue {
 public:
  virtual ~IoQueue() = default;  // requires open() == 0

  // The implementation's name: "io_uring" or "threads".
  virtual const char* backend() const = 0;
  // Owner's thread. Never fails: errors are passed to `done`. Requests beyond the system's limit
  // are queued.
  virtual void Submit(IoRequest request) = 0;
  // Runs `work` on another thread, one at a time and in order, and then `done` in Poll. For calls
  // that may block on the disk.
  virtual void Run(std::function<void()> work, std::function<void()> done) = 0;
  // Runs the callbacks of completed requests. Waits up to `patience` for the first of them, or for
  // Wake.
  virtual void Poll(Duration patience) = 0;
  // The number of requests and works whose `done` has not run.
  virtual size_t open() const = 0;

  // Any thread: wakes Poll, the current call or the next one.
  virtual void Wake() = 0;
};

enum class IoBackend { kAuto, kUring, kThreads };
// FAILED_PRECONDITION when io_uring is requested and the system refuses it, as the seccomp profiles
// of many containers do. kAuto falls back to threads.
absl::StatusOr<std::unique_ptr<IoQueue>> MakeIoQueue(IoBackend backend);

// The two implementations.
std::unique_ptr<IoQueue> MakeThreadIoQueue(int threads);
absl::StatusOr<std::unique_ptr<IoQueue>> MakeUringIoQueue();

// "auto", "uring" or "threads".
absl::StatusOr<IoBackend> ParseIoBackend(const std::string& name);

}  // namespace penstock
