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

// A file of its own for the packed matrices of a model's experts. It has no name in its directory,
// so its space is free when the process ends, in whatever way. It bypasses the system's page cache
// where the file system can, because ExpertCache is the cache.
class ExpertFile {
 public:
  // Errors name the directory: NOT_FOUND, PERMISSION_DENIED, UNAVAILABLE.
  static absl::StatusOr<std::unique_ptr<ExpertFile>> Create(const std::string& directory);

  // Writes an expert behind the others: `pieces` in whole pages, at page-aligned addresses.
  // RESOURCE_EXHAUSTED if the file system is full.
  absl::Status Append(std::span<const std::span<const std::byte>> pieces);

  int32_t experts() const { return static_cast<int32_t>(extents_.size()); }
  size_t bytes(int32_t expert) const { return extents_[static_cast<size_t>(expert)].bytes; }
  uint64_t size() const { return size_; }

  // Reads an expert to a page-aligned address. Any thread, after the last Append. UNAVAILABLE if
  // the disk fails, DATA_LOSS if the file is shorter or its bytes are not those that were written.
  absl::Status Read(int32_t expert, std::byte* target) const;

 private:
  struct Extent {
    uint64_t offset = 0;
    size_t bytes = 0;
    uint64_t hash = 0;  // XXH3-64
  };

  ExpertFile(std::string directory, OwnedFd fd)
      : directory_(std::move(directory)), fd_(std::move(fd)) {}

  const std::string directory_;
  const OwnedFd fd_;
  uint64_t size_ = 0;
  std::vector<Extent> extents_;
};

}  // namespace penstock
