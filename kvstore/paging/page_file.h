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

// The unit in which the system keeps files in memory.
inline constexpr size_t kSystemPageBytes = 4096;

// Bytes [begin, end) of a file.
struct ByteRange {
  size_t begin = 0, end = 0;
  size_t size() const { return end - begin; }
  bool operator==(const ByteRange&) const = default;
};

// A file without a name, all of it mapped for reading and writing. The system decides what of it is
// in memory, unless it is told. Its space on the disk is taken at once, so that no later write
// finds the disk full. Any thread.
class PageFile {
 public:
  // Errors name the directory: NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED if the disk has not
  // as much room, FAILED_PRECONDITION if the directory is in memory or its file system cannot take
  // space in advance.
  static absl::StatusOr<std::unique_ptr<PageFile>> Create(const std::string& directory,
                                                          size_t bytes);
  ~PageFile();
  PageFile(const PageFile&) = delete;
  PageFile& operator=(const PageFile&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

  // Starts to read the ranges from the disk, and does not wait for it.
  void ReadAhead(std::span<const ByteRange> ranges) const;
  // Writes to the disk what has changed in the ranges, of whole system pages, and then takes them
  // out of memory, except what another thread uses meanwhile. UNAVAILABLE if the disk fails: what
  // was written to the file since may be lost.
  absl::Status Drop(std::span<const ByteRange> ranges) const;
  // Sets `in_memory` to a flag for each system page of the range: 1 if it is in memory.
  void Look(ByteRange range, std::vector<unsigned char>& in_memory) const;

 private:
  PageFile(std::string directory, OwnedFd fd, std::byte* data, size_t bytes);

  void Advise(std::span<const ByteRange> ranges, int advice) const;
  absl::Status Write(ByteRange range, unsigned flags) const;

  const std::string directory_;
  const OwnedFd fd_;
  const OwnedFd process_;  // this process, for advice
  std::byte* const data_;
  const size_t bytes_;
};

}  // namespace penstock
