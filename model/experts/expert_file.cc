#include "model/experts/expert_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "base/check.h"

namespace penstock {
namespace {

absl::Status ErrnoStatus(int error, const std::string& what) {
  const std::string text = fmt::format("{}: {}", what, std::generic_category().message(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(text);
  if (error == EACCES || error == EPERM || error == EROFS) return absl::PermissionDeniedError(text);
  if (error == ENOSPC || error == EDQUOT) return absl::ResourceExhaustedError(text);
  return absl::UnavailableError(text);
}

// File systems without O_DIRECT refuse to open with it.
int OpenUnnamed(std::string path) {
  const std::string pattern = path;
  int fd = mkostemp(path.data(), O_CLOEXEC | O_DIRECT);
  if (fd < 0 && errno == EINVAL) {
    unlink(path.c_str());  // Some make the file before they refuse.
    path = pattern;
    fd = mkostemp(path.data(), O_CLOEXEC);
  }
  if (fd >= 0) unlink(path.c_str());
  return fd;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ExpertFile>> ExpertFile::Create(const std::string& directory) {
  const int fd = OpenUnnamed(directory + "/penstock-experts-XXXXXX");
  if (fd < 0) return ErrnoStatus(errno, fmt::format("a file for experts in {}", directory));
  return std::unique_ptr<ExpertFile>(new ExpertFile(directory, fd));
}

ExpertFile::~ExpertFile() { close(fd_); }

absl::Status ExpertFile::Append(std::span<const std::span<const std::byte>> pieces) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> hash(XXH3_createState(),
                                                                      &XXH3_freeState);
  PENSTOCK_CHECK(hash != nullptr);
  XXH3_64bits_reset(hash.get());
  Extent extent{.offset = size_};
  for (std::span<const std::byte> piece : pieces) {
    XXH3_64bits_update(hash.get(), piece.data(), piece.size());
    extent.bytes += piece.size();
    while (!piece.empty()) {
      const ssize_t written = pwrite(
          fd_, piece.data(), piece.size(),
          static_cast<off_t>(extent.offset + extent.bytes) - static_cast<off_t>(piece.size()));
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) {
        return ErrnoStatus(errno, fmt::format("writing experts behind {} bytes of a file in {}",
                                              size_, directory_));
      }
      piece = piece.subspan(static_cast<size_t>(written));
    }
  }
  extent.hash = XXH3_64bits_digest(hash.get());
  size_ += extent.bytes;
  extents_.push_back(extent);
  return absl::OkStatus();
}

absl::Status ExpertFile::Read(int32_t expert, std::byte* target) const {
  const Extent& extent = extents_[static_cast<size_t>(expert)];
  for (size_t done = 0; done < extent.bytes;) {
    const ssize_t got =
        pread(fd_, target + done, extent.bytes - done, static_cast<off_t>(extent.offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return ErrnoStatus(errno,
                         fmt::format("reading expert {} from a file in {}", expert, directory_));
    }
    if (got == 0) {
      return DataLoss("the file of experts in {} ends before expert {}, of bytes {} to {}",
                      directory_, expert, extent.offset, extent.offset + extent.bytes);
    }
    done += static_cast<size_t>(got);
  }
  if (XXH3_64bits(target, extent.bytes) == extent.hash) return absl::OkStatus();
  return DataLoss("expert {} in the file of experts in {} has other bytes than were written",
                  expert, directory_);
}

}  // namespace penstock
