#pragma once

#include <atomic>
#include <cerrno>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/errno_status.h"
#include "kvstore/tiers/disk/io_queue.h"
#include "kvstore/tiers/disk/store_files.h"

namespace penstock {

// The faults that a test gives to a disk. Any thread.
struct DiskFaults {
  std::atomic<int> create_errno{0};  // of new segments
  std::atomic<int> write_errno{0};
  std::atomic<int> read_errno{0};
  std::atomic<int> sync_errno{0};  // of segments that are finished
  std::atomic<int> syncs_failed{0};
  std::atomic<bool> hang_reads{false};  // until it is false again
  std::atomic<bool> hang_writes{false};
  std::atomic<int> writes_hanging{0};
  std::atomic<int> writes_failed{0};
};

class FaultyFiles final : public StoreFiles {
 public:
  explicit FaultyFiles(std::shared_ptr<DiskFaults> faults) : faults_(std::move(faults)) {}
  absl::StatusOr<OwnedFd> Create(const std::string& path, uint64_t bytes) override {
    if (const int error = faults_->create_errno) return ErrnoStatus(error, path);
    return StoreFiles::Create(path, bytes);
  }
  absl::StatusOr<OwnedFd> Lock(const std::string& path) override {
    if (faults_->create_errno == EROFS) return ErrnoStatus(EROFS, path);
    return StoreFiles::Lock(path);
  }
  absl::Status Finish(int fd, uint64_t bytes) override {
    RETURN_IF_ERROR(StoreFiles::Finish(fd, bytes));
    const int error = faults_->sync_errno;
    if (error == 0) return absl::OkStatus();
    ++faults_->syncs_failed;
    return ErrnoStatus(error, "fsync");
  }

 private:
  const std::shared_ptr<DiskFaults> faults_;
};

class FaultyIo final : public IoQueue {
 public:
  FaultyIo(std::unique_ptr<IoQueue> real, std::shared_ptr<DiskFaults> faults)
      : real_(std::move(real)), faults_(std::move(faults)) {}

  const char* backend() const override { return real_->backend(); }
  void Submit(IoRequest request) override {
    const int error = request.write ? faults_->write_errno : faults_->read_errno;
    if (error != 0) {
      // A write that fails may have been done in part.
      real_->Run([] {},
                 [this, write = request.write, done = std::move(request.done), error] {
                   done(ErrnoStatus(error, "I/O"));
                   if (write) ++faults_->writes_failed;
                 });
    } else if (Hangs(request)) {
      if (request.write) ++faults_->writes_hanging;
      hanging_.push_back(std::move(request));
    } else {
      real_->Submit(std::move(request));
    }
  }
  void Run(std::function<void()> work, std::function<void()> done) override {
    real_->Run(std::move(work), std::move(done));
  }
  void Poll(Duration patience) override {
    for (IoRequest& request : std::exchange(hanging_, {})) {
      if (Hangs(request)) {
        hanging_.push_back(std::move(request));
        continue;
      }
      if (request.write) --faults_->writes_hanging;
      real_->Submit(std::move(request));
    }
    real_->Poll(patience);
  }
  size_t open() const override { return real_->open() + hanging_.size(); }
  void Wake() override { real_->Wake(); }

 private:
  bool Hangs(const IoRequest& request) const {
    return request.write ? faults_->hang_writes : faults_->hang_reads;
  }

  const std::unique_ptr<IoQueue> real_;
  const std::shared_ptr<DiskFaults> faults_;
  std::vector<IoRequest> hanging_;
};

}  // namespace penstock
