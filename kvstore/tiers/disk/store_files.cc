#include "kvstore/tiers/disk/store_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/check.h"
#include "base/errno_status.h"

namespace penstock {
namespace {

constexpr mode_t kMode = 0600;  // Owner only: KV reveals the users' prompts.

absl::StatusOr<OwnedFd> OpenFile(const std::string& path, int flags) {
  int fd = open(path.c_str(), flags | O_DIRECT | O_CLOEXEC, kMode);
  // File systems without direct I/O use the page cache instead.
  if (fd < 0 && errno == EINVAL) fd = open(path.c_str(), (flags & ~O_EXCL) | O_CLOEXEC, kMode);
  if (fd < 0) return ErrnoStatus(errno, path);
  return OwnedFd(fd);
}

}  // namespace

DirectBuffer::DirectBuffer(size_t bytes)
    : size_((bytes + 4095) / 4096 * 4096),
      memory_(static_cast<std::byte*>(std::aligned_alloc(4096, std::max<size_t>(size_, 4096)))) {
  PENSTOCK_CHECK(memory_ != nullptr, "out of memory");
  std::memset(memory_.get(), 0, size_);
}

absl::StatusOr<std::vector<std::string>> StoreFiles::List(const std::string& directory) {
  std::error_code error;
  std::vector<std::string> names;
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    names.push_back(entry->path().filename());
  }
  if (error) return ErrnoStatus(error.value(), directory);
  return names;
}

absl::Status StoreFiles::MakeDirectory(const std::string& directory) {
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) return ErrnoStatus(errno, directory);
  return absl::OkStatus();
}

absl::StatusOr<OwnedFd> StoreFiles::Create(const std::string& path, uint64_t bytes) {
  ASSIGN_OR_RETURN(OwnedFd fd, OpenFile(path, O_RDWR | O_CREAT | O_EXCL));
  const auto length = static_cast<off_t>(bytes);
  int error = fallocate(fd.get(), 0, 0, length) == 0 ? 0 : errno;
  if (error == EOPNOTSUPP) error = ftruncate(fd.get(), length) == 0 ? 0 : errno;
  if (error == 0) return fd;
  unlink(path.c_str());
  return ErrnoStatus(error, path);
}

absl::StatusOr<OwnedFd> StoreFiles::Open(const std::string& path, bool write) {
  return OpenFile(path, write ? O_RDWR : O_RDONLY);
}

absl::StatusOr<uint64_t> StoreFiles::Size(int fd) {
  struct stat status;
  if (fstat(fd, &status) != 0) return ErrnoStatus(errno, "fstat");
  return static_cast<uint64_t>(status.st_size);
}

absl::Status StoreFiles::Read(int fd, uint64_t offset, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = pread(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, "read");
    if (got == 0) return DataLoss("read: the file ends at {}", offset);
    bytes = bytes.subspan(static_cast<size_t>(got));
    offset += static_cast<uint64_t>(got);
  }
  return absl::OkStatus();
}

absl::Status StoreFiles::Write(int fd, uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return ErrnoStatus(errno, "write");
    bytes = bytes.subspan(static_cast<size_t>(put));
    offset += static_cast<uint64_t>(put);
  }
  return absl::OkStatus();
}

absl::Status StoreFiles::Finish(int fd, uint64_t bytes) {
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) return ErrnoStatus(errno, "ftruncate");
  if (fsync(fd) != 0) return ErrnoStatus(errno, "fsync");
  return absl::OkStatus();
}

absl::Status StoreFiles::Remove(const std::string& path) {
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return ErrnoStatus(errno, path);
  return absl::OkStatus();
}

absl::StatusOr<OwnedFd> StoreFiles::Lock(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kMode);
  if (fd < 0) return ErrnoStatus(errno, path);
  OwnedFd owned(fd);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoStatus(errno, path);
    return Unavailable("{}: locked by another process", path);
  }
  // If the file was removed between the two calls, another process may have made a new one.
  struct stat mine;
  struct stat there;
  if (fstat(fd, &mine) != 0 || stat(path.c_str(), &there) != 0 || mine.st_ino != there.st_ino) {
    return Unavailable("{}: removed while it was being locked", path);
  }
  return owned;
}

}  // namespace penstock
