#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/status.h"

namespace penstock {

// Owns a read-only mapping of a file. Immutable: any thread may read it.
class MappedFile {
 public:
  // Returns NOT_FOUND, PERMISSION_DENIED or UNAVAILABLE, with the path.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

// Lets the system read the pages of `bytes`, a part of a mapped file, at once instead of in the
// small pieces of single accesses. Returns before they are there.
void ReadAhead(std::span<const std::byte> bytes);
// Unmaps the whole pages of `bytes`, a part of a mapped file, from this process. They stay in the
// system's page cache until the memory is needed, and are mapped again when they are accessed.
void ReleasePages(std::span<const std::byte> bytes);

}  // namespace penstock
