#include "kvstore/tiers/disk/io_queue.h"

#include "base/log/log.h"

namespace penstock {

// Enough concurrent requests to keep a disk busy without io_uring.
constexpr int kThreads = 4;

void Shorten(IoRequest& request, size_t bytes) {
  std::vector<iovec>& pieces = request.pieces;
  request.offset += bytes;
  size_t whole = 0;
  while (bytes >= pieces[whole].iov_len) bytes -= pieces[whole++].iov_len;
  pieces.erase(pieces.begin(), pieces.begin() + static_cast<ptrdiff_t>(whole));
  pieces[0].iov_base = static_cast<std::byte*>(pieces[0].iov_base) + bytes;
  pieces[0].iov_len -= bytes;
}

absl::StatusOr<std::unique_ptr<IoQueue>> MakeIoQueue(IoBackend backend) {
  if (backend == IoBackend::kThreads) return MakeThreadIoQueue(kThreads);
  auto uring = MakeUringIoQueue();
  if (uring.ok() || backend == IoBackend::kUring) return uring;
  LogInfo("io_uring_refused", "{}; {} threads do the I/O instead", Message(uring.status()),
          kThreads);
  return MakeThreadIoQueue(kThreads);
}

absl::StatusOr<IoBackend> ParseIoBackend(const std::string& name) {
  if (name == "auto" || name.empty()) return IoBackend::kAuto;
  if (name == "uring") return IoBackend::kUring;
  if (name == "threads") return IoBackend::kThreads;
  return InvalidArgument("nvme_io is \"{}\"; it must be auto, uring or threads", name);
}

}  // namespace penstock
