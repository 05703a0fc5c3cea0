#include "model/load/packed_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <cerrno>
#include <vector>

#include "base/errno_status.h"

namespace penstock {

absl::StatusOr<PackedDirectoryLock> PackedDirectoryLock::Take(const std::string& directory) {
  OwnedFd fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) {
    return ErrnoStatus(errno, fmt::format("opening packed_weights_dir {}", directory));
  }
  while (flock(fd.get(), LOCK_EX) != 0) {
    if (errno == EINTR) continue;
    return ErrnoStatus(errno, fmt::format("locking packed_weights_dir {}", directory));
  }
  return PackedDirectoryLock(std::move(fd));
}

absl::StatusOr<std::string> PackedNameOf(const Checkpoint& checkpoint, const ModelConfig& config,
                                         WeightPolicy policy) {
  std::vector<uint64_t> parts = {checkpoint.layout_fingerprint(), static_cast<uint64_t>(policy),
                                 config.use_mtp ? uint64_t{1} : uint64_t{0}};
  for (const std::string& path : checkpoint.weight_files()) {
    struct stat info {};
    if (stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, path);
    parts.push_back(static_cast<uint64_t>(info.st_size));
    parts.push_back(static_cast<uint64_t>(info.st_mtim.tv_sec));
    parts.push_back(static_cast<uint64_t>(info.st_mtim.tv_nsec));
  }
  const XXH128_hash_t hash = XXH3_128bits(parts.data(), parts.size() * sizeof(parts[0]));
  return fmt::format("penstock-{:016x}{:016x}.weights", hash.high64, hash.low64);
}

}  // namespace penstock
