#include "kvstore/paging/page_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <system_error>

#include "base/bytes.h"
#include "base/errno_status.h"
#include "base/unnamed_file.h"

namespace penstock {
namespace {

absl::Status CheckIsOnDisk(int fd, const std::string& directory) {
  struct statfs system {};
  if (fstatfs(fd, &system) != 0) return ErrnoStatus(errno, directory);
  const auto magic = static_cast<unsigned long>(system.f_type);
  if (magic != TMPFS_MAGIC && magic != RAMFS_MAGIC) return absl::OkStatus();
  return FailedPrecondition("{} is on a file system in memory; name a directory on a disk",
                            directory);
}

// A file system may give all that it has before it finds that this is too little, and everything
// else on the disk would fail for that moment.
absl::Status CheckRoom(int fd, const std::string& directory, size_t bytes) {
  struct statvfs disk {};
  if (fstatvfs(fd, &disk) != 0) return ErrnoStatus(errno, directory);
  const uint64_t room = uint64_t{disk.f_bavail} * disk.f_frsize;
  if (bytes <= room) return absl::OkStatus();
  return ResourceExhausted("{} for a file in {}, whose disk has {} left", FormatBytes(bytes),
                           directory, FormatBytes(room));
}

absl::Status TakeSpace(int fd, const std::string& directory, size_t bytes) {
  if (fallocate(fd, 0, 0, static_cast<off_t>(bytes)) == 0) return absl::OkStatus();
  if (errno == EOPNOTSUPP) {
    return FailedPrecondition(
        "the file system of {} cannot take space for a file in advance; name a directory on "
        "another one, such as ext4 or XFS",
        directory);
  }
  return ErrnoStatus(errno, fmt::format("{} for a file in {}", FormatBytes(bytes), directory));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PageFile>> PageFile::Create(const std::string& directory,
                                                           size_t bytes) {
  ASSIGN_OR_RETURN(OwnedFd fd, OpenUnnamedFile(directory, "pages of KV"));
  RETURN_IF_ERROR(CheckIsOnDisk(fd.get(), directory));
  RETURN_IF_ERROR(CheckRoom(fd.get(), directory, bytes));
  RETURN_IF_ERROR(TakeSpace(fd.get(), directory, bytes));
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) {
    return ErrnoStatus(errno, fmt::format("a file of {} in {}", FormatBytes(bytes), directory));
  }
  // Nothing beside what is asked for: the system would read what lies around a page, too.
  madvise(data, bytes, MADV_RANDOM);
  return std::unique_ptr<PageFile>(
      new PageFile(directory, std::move(fd), static_cast<std::byte*>(data), bytes));
}

PageFile::PageFile(std::string directory, OwnedFd fd, std::byte* data, size_t bytes)
    : directory_(std::move(directory)),
      fd_(std::move(fd)),
      process_(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0))),
      data_(data),
      bytes_(bytes) {}

PageFile::~PageFile() { munmap(data_, bytes_); }

// The system may refuse advice; the pages are then read when they are used.
void PageFile::ReadAhead(std::span<const ByteRange> ranges) const { Advise(ranges, MADV_WILLNEED); }

// Many ranges in a call, since each call that unmaps pages interrupts the other cores. Where the
// system cannot do that for this advice, it takes a call for each range.
void PageFile::Advise(std::span<const ByteRange> ranges, int advice) const {
  std::vector<iovec> pieces;
  for (const ByteRange& range : ranges) {
    const size_t begin = range.begin / kSystemPageBytes * kSystemPageBytes;
    pieces.push_back({.iov_base = data_ + begin, .iov_len = range.end - begin});
  }
  for (std::span<const iovec> rest = pieces; !rest.empty();) {
    const auto now = rest.first(std::min<size_t>(rest.size(), IOV_MAX));
    rest = rest.subspan(now.size());
    ssize_t bytes = 0;
    for (const iovec& piece : now) bytes += static_cast<ssize_t>(piece.iov_len);
    if (process_madvise(process_.get(), now.data(), now.size(), advice, 0) == bytes) continue;
    for (const iovec& piece : now) madvise(piece.iov_base, piece.iov_len, advice);
  }
}

absl::Status PageFile::Write(ByteRange range, unsigned flags) const {
  if (sync_file_range(fd_.get(), static_cast<off_t>(range.begin), static_cast<off_t>(range.size()),
                      flags) == 0) {
    return absl::OkStatus();
  }
  return ErrnoStatus(errno, fmt::format("writing pages of KV to a file in {}", directory_));
}

absl::Status PageFile::Drop(std::span<const ByteRange> ranges) const {
  for (const ByteRange& range : ranges) {
    RETURN_IF_ERROR(Write(range, SYNC_FILE_RANGE_WRITE));
  }
  for (const ByteRange& range : ranges) {
    RETURN_IF_ERROR(Write(
        range, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER));
  }
  // The system drops a page only if it is not mapped and has not changed since it was written. So
  // a page that another thread uses again in between stays.
  Advise(ranges, MADV_DONTNEED);
  for (const ByteRange& range : ranges) {
    posix_fadvise(fd_.get(), static_cast<off_t>(range.begin), static_cast<off_t>(range.size()),
                  POSIX_FADV_DONTNEED);
  }
  return absl::OkStatus();
}

void PageFile::Look(ByteRange range, std::vector<unsigned char>& in_memory) const {
  const size_t pages = (range.size() + kSystemPageBytes - 1) / kSystemPageBytes;
  in_memory.assign(pages, 1);  // where the system does not tell
  mincore(data_ + range.begin, range.size(), in_memory.data());
  for (unsigned char& page : in_memory) page &= 1;
}

}  // namespace penstock
