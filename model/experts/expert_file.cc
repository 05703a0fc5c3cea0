#include "model/experts/expert_file.h"

#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>

#include "base/check.h"
#include "base/errno_status.h"
#include "base/unnamed_file.h"

namespace penstock {
absl::StatusOr<std::unique_ptr<ExpertFile>> ExpertFile::Create(const std::string& directory) {
  ASSIGN_OR_RETURN(OwnedFd fd, OpenUnnamedDirectFile(directory, "experts"));
  return std::unique_ptr<ExpertFile>(new ExpertFile(directory, std::move(fd)));
}

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
          fd_.get(), piece.data(), piece.size(),
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
    const ssize_t got = pread(fd_.get(), target + done, extent.bytes - done,
                              static_cast<off_t>(extent.offset + done));
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
