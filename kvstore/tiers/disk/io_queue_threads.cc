#include <sys/uio.h>

#include <cerrno>
#include <deque>
#include <utility>

#include "base/errno_status.h"
#include "base/mutex.h"
#include "kvstore/tiers/disk/io_queue.h"
#include "kvstore/tiers/disk/io_worker.h"

namespace penstock {
namespace {

absl::Status Move(IoRequest& request) {
  size_t left = 0;
  for (const iovec& piece : request.pieces) left += piece.iov_len;
  while (true) {
    const auto count = static_cast<int>(request.pieces.size());
    const auto offset = static_cast<off_t>(request.offset);
    const ssize_t moved = request.write ? pwritev(request.fd, request.pieces.data(), count, offset)
                                        : preadv(request.fd, request.pieces.data(), count, offset);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return ErrnoStatus(errno, request.write ? "write" : "read");
    if (moved == 0) return DataLoss("read: the file ends before the block does");
    left -= static_cast<size_t>(moved);
    if (left == 0) return absl::OkStatus();
    Shorten(request, static_cast<size_t>(moved));
  }
}

// preadv and pwritev on a few threads.
class ThreadIoQueue final : public IoQueue {
 public:
  explicit ThreadIoQueue(int threads) : io_(threads), works_(1) {}

  const char* backend() const override { return "threads"; }

  void Submit(IoRequest request) override {
    ++open_;
    io_.Push([this, request = std::move(request)]() mutable {
      const absl::Status status = Move(request);
      Complete([done = std::move(request.done), status] { done(status); });
    });
  }

  void Run(std::function<void()> work, std::function<void()> done) override {
    ++open_;
    works_.Push([this, work = std::move(work), done = std::move(done)]() mutable {
      work();
      Complete(std::move(done));
    });
  }

  void Poll(Duration patience) override {
    std::deque<std::function<void()>> completed;
    {
      MutexLock lock(mutex_);
      if (completed_.empty() && !woken_ && patience > Duration::zero())
        changed_.WaitFor(mutex_, patience);
      woken_ = false;
      completed.swap(completed_);
    }
    for (auto& done : completed) {
      done();
      done = {};
      --open_;
    }
  }

  size_t open() const override { return open_; }

  void Wake() override {
    MutexLock lock(mutex_);
    woken_ = true;
    changed_.NotifyAll();
  }

 private:
  void Complete(std::function<void()> done) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    completed_.push_back(std::move(done));
    changed_.NotifyAll();
  }

  size_t open_ = 0;  // used by the owner's thread
  Mutex mutex_;
  CondVar changed_;
  bool woken_ GUARDED_BY(mutex_) = false;
  std::deque<std::function<void()>> completed_ GUARDED_BY(mutex_);
  IoWorker io_;  // Last, because their threads use the members above.
  IoWorker works_;
};

}  // namespace

std::unique_ptr<IoQueue> MakeThreadIoQueue(int threads) {
  return std::make_unique<ThreadIoQueue>(threads);
}

}  // namespace penstock
