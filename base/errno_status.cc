#include "base/errno_status.h"

#include <fmt/format.h>

#include <cerrno>
#include <system_error>

namespace penstock {

absl::Status ErrnoStatus(int error, const std::string& what) {
  const std::string text = fmt::format("{}: {}", what, std::generic_category().message(error));
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(text);
    case EROFS:
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(text);
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(text);
    default:
      return absl::UnavailableError(text);
  }
}

}  // namespace penstock
