#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/owned_fd.h"
#include "base/status.h"

namespace penstock {

// Zeroed memory for O_DIRECT, aligned to 4,096 bytes.
class DirectBuffer {
 public:
  explicit DirectBuffer(size_t bytes);  // rounded up to pages
  std::span<std::byte> bytes() const { return {memory_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  size_t size_;
  std::unique_ptr<std::byte, Free> memory_;
};

// The blocking calls on a store's directory. An interface: tests inject errors. Any thread.
// Statuses are those of ErrnoStatus, with the path.
class StoreFiles {
 public:
  virtual ~StoreFiles() = default;

  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& directory);
  // Makes the directory, but not its parents. OK when it exists.
  virtual absl::Status MakeDirectory(const std::string& directory);
  // Makes a file of `bytes` bytes, allocated at once if the file system can; for reading and
  // writing, with O_DIRECT if possible.
  virtual absl::StatusOr<OwnedFd> Create(const std::string& path, uint64_t bytes);
  // For reading only, unless `write`.
  virtual absl::StatusOr<OwnedFd> Open(const std::string& path, bool write);
  virtual absl::StatusOr<uint64_t> Size(int fd);
  // Moves all bytes or fails; multiples of 4,096.
  virtual absl::Status Read(int fd, uint64_t offset, std::span<std::byte> bytes);
  virtual absl::Status Write(int fd, uint64_t offset, std::span<const std::byte> bytes);
  // Truncates the file to `bytes` and flushes it to the disk.
  virtual absl::Status Finish(int fd, uint64_t bytes);
  virtual absl::Status Remove(const std::string& path);
  // Opens the file, creating it if necessary, and locks it for this process until it is closed.
  // UNAVAILABLE when another process has the lock.
  virtual absl::StatusOr<OwnedFd> Lock(const std::string& path);
};

}  // namespace penstock
