#include <liburing.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <deque>
#include <system_error>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/errno_status.h"
#include "base/mutex.h"
#include "kvstore/tiers/disk/io_queue.h"
#include "kvstore/tiers/disk/io_worker.h"

namespace penstock {
namespace {

constexpr unsigned kEntries = 64;

struct Flight {
  IoRequest request;
  size_t bytes = 0;  // not moved yet
};

// One ring, used by one thread. Wake and the completions of other threads arrive through an eventfd
// that the ring reads.
class UringIoQueue final : public IoQueue {
 public:
  UringIoQueue(io_uring ring, int wake_fd) : ring_(ring), wake_fd_(wake_fd) { ReadWakes(); }

  ~UringIoQueue() override {
    PENSTOCK_CHECK(flights_.empty(), "requests are open");
    works_.reset();  // Its thread may still be in Wake.
    io_uring_queue_exit(&ring_);
    close(wake_fd_);
  }

  const char* backend() const override { return "io_uring"; }

  void Submit(IoRequest request) override {
    auto flight = std::make_unique<Flight>();
    for (const iovec& piece : request.pieces) flight->bytes += piece.iov_len;
    PENSTOCK_CHECK_LE(request.pieces.size(), kIoPiecesMax);
    flight->request = std::move(request);
    waiting_.push_back(std::move(flight));
    StartWaiting();
  }

  void Run(std::function<void()> work, std::function<void()> done) override {
    ++open_works_;
    works_->Push([this, work = std::move(work), done = std::move(done)]() mutable {
      work();
      {
        MutexLock lock(mutex_);
        completed_.push_back(std::move(done));
      }
      Wake();
    });
  }

  void Poll(Duration patience) override {
    io_uring_submit(&ring_);
    io_uring_cqe* completion = nullptr;
    if (io_uring_peek_cqe(&ring_, &completion) != 0 && patience > Duration::zero()) {
      const auto nanoseconds = patience.count();
      __kernel_timespec timeout = {.tv_sec = nanoseconds / 1'000'000'000,
                                   .tv_nsec = nanoseconds % 1'000'000'000};
      if (io_uring_wait_cqe_timeout(&ring_, &completion, &timeout) != 0) completion = nullptr;
    }
    while (completion != nullptr || io_uring_peek_cqe(&ring_, &completion) == 0) {
      auto* flight = static_cast<Flight*>(io_uring_cqe_get_data(completion));
      const int result = completion->res;
      io_uring_cqe_seen(&ring_, completion);
      completion = nullptr;
      if (flight == nullptr) {
        ReadWakes();
      } else {
        Land(flight, result);
      }
    }
    RunWorksDone();
    StartWaiting();
  }

  size_t open() const override { return flights_.size() + waiting_.size() + open_works_; }

  void Wake() override {
    const uint64_t one = 1;
    // Fails only when the counter is full, and then Poll wakes anyway.
    [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof(one));
  }

 private:
  void ReadWakes() {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    PENSTOCK_CHECK(entry != nullptr, "no entry is left for the wake-up");
    io_uring_prep_read(entry, wake_fd_, &wakes_, sizeof(wakes_), 0);
    io_uring_sqe_set_data(entry, nullptr);
    io_uring_submit(&ring_);
  }

  void StartWaiting() {
    bool any = false;
    // One entry is reserved for the wake-up.
    while (!waiting_.empty() && flights_.size() < kEntries - 1) {
      io_uring_sqe* entry = io_uring_get_sqe(&ring_);
      if (entry == nullptr) break;
      Flight* flight = waiting_.front().release();
      waiting_.pop_front();
      flights_.insert(flight);
      const IoRequest& request = flight->request;
      const auto pieces = static_cast<unsigned>(request.pieces.size());
      if (request.write) {
        io_uring_prep_writev(entry, request.fd, request.pieces.data(), pieces, request.offset);
      } else {
        io_uring_prep_readv(entry, request.fd, request.pieces.data(), pieces, request.offset);
      }
      io_uring_sqe_set_data(entry, flight);
      any = true;
    }
    if (any) io_uring_submit(&ring_);
  }

  void Land(Flight* raw, int result) {
    flights_.erase(raw);
    std::unique_ptr<Flight> flight(raw);
    IoRequest& request = flight->request;
    if (result == -EINTR || result == -EAGAIN) {
      waiting_.push_back(std::move(flight));
      return;
    }
    if (result <= 0) {
      request.done(result == 0 ? DataLoss("read: the file ends before the block does")
                               : ErrnoStatus(-result, request.write ? "write" : "read"));
      return;
    }
    flight->bytes -= static_cast<size_t>(result);
    if (flight->bytes == 0) {
      request.done(absl::OkStatus());
      return;
    }
    Shorten(request, static_cast<size_t>(result));
    waiting_.push_back(std::move(flight));
  }

  void RunWorksDone() {
    std::deque<std::function<void()>> completed;
    {
      MutexLock lock(mutex_);
      completed.swap(completed_);
    }
    for (auto& done : completed) {
      done();
      done = {};
      --open_works_;
    }
  }

  // Used by the owner's thread.
  io_uring ring_;
  const int wake_fd_;
  uint64_t wakes_ = 0;
  std::deque<std::unique_ptr<Flight>> waiting_;
  std::unordered_set<Flight*> flights_;  // owned; the ring refers to them by address
  size_t open_works_ = 0;

  Mutex mutex_;
  std::deque<std::function<void()>> completed_ GUARDED_BY(mutex_);
  std::unique_ptr<IoWorker> works_ = std::make_unique<IoWorker>(1);
};

}  // namespace

absl::StatusOr<std::unique_ptr<IoQueue>> MakeUringIoQueue() {
  io_uring ring;
  if (const int result = io_uring_queue_init(kEntries, &ring, 0); result < 0) {
    return FailedPrecondition("io_uring is refused here ({})",
                              std::generic_category().message(-result));
  }
  const int wake_fd = eventfd(0, EFD_CLOEXEC);
  if (wake_fd < 0) {
    io_uring_queue_exit(&ring);
    return FailedPrecondition("io_uring: no eventfd ({})", std::generic_category().message(errno));
  }
  return std::make_unique<UringIoQueue>(ring, wake_fd);
}

}  // namespace penstock
