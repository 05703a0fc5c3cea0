#include "base/unnamed_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "base/errno_status.h"

namespace penstock {
namespace {

// -1, and errno, if it cannot be made.
int Make(const std::string& directory, int flags) {
  std::string path = directory + "/penstock-XXXXXX";
  const int fd = mkostemp(path.data(), O_CLOEXEC | flags);
  const int error = errno;
  // Some file systems make the file before they refuse the flags.
  if (fd >= 0 || error == EINVAL) unlink(path.c_str());
  errno = error;
  return fd;
}

absl::StatusOr<OwnedFd> Owned(int fd, const std::string& directory, const std::string& content) {
  if (fd >= 0) return OwnedFd(fd);
  return ErrnoStatus(errno, fmt::format("a file for {} in {}", content, directory));
}

}  // namespace

absl::StatusOr<OwnedFd> OpenUnnamedFile(const std::string& directory, const std::string& content) {
  return Owned(Make(directory, 0), directory, content);
}

absl::StatusOr<OwnedFd> OpenUnnamedDirectFile(const std::string& directory,
                                              const std::string& content) {
  int fd = Make(directory, O_DIRECT);
  if (fd < 0 && errno == EINVAL) fd = Make(directory, 0);
  return Owned(fd, directory, content);
}

}  // namespace penstock
