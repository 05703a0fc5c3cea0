#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>

#include "base/mapped_file.h"
#include "base/owned_fd.h"
#include "base/status.h"
#include "proto/packed_weights.pb.h"

namespace penstock {

// This room, model/packed, keeps a model's packed weights in a file that the processes of a host
// map, so that they have one copy in memory. It may use base/, kernels/, model/weights and proto
// only. It does not know checkpoints.
//
// The first page has a header; then come the bytes of each part, which begin at a page, and a
// v1::PackedWeights, which says where they are. All numbers are those of this machine.

// Writes a file of packed weights. It has no name before Finish. One thread.
class PackedWeightsWriter {
 public:
  // Makes a file beside `path`. Errors name it: NOT_FOUND, PERMISSION_DENIED, UNAVAILABLE.
  static absl::StatusOr<std::unique_ptr<PackedWeightsWriter>> Create(const std::string& path);
  ~PackedWeightsWriter();
  PackedWeightsWriter(const PackedWeightsWriter&) = delete;
  PackedWeightsWriter& operator=(const PackedWeightsWriter&) = delete;

  // Writes bytes at the file's next page, and sets place and hash of the part. RESOURCE_EXHAUSTED
  // if the file system is full.
  absl::Status Append(std::span<const std::byte> bytes, v1::PackedWeights::Part& part);
  // The file's bytes from the beginning of a part on, mapped until the writer ends.
  absl::StatusOr<std::byte*> Map(const v1::PackedWeights::Part& first, size_t bytes);

  // Writes header and contents, and gives the file its path, which replaces another file there.
  absl::Status Finish(const v1::PackedWeights& contents);

 private:
  PackedWeightsWriter(std::string path, std::string temporary, OwnedFd fd);
  absl::Status Write(std::span<const std::byte> bytes, uint64_t offset);

  const std::string path_;
  std::string temporary_;  // empty: the file has its path
  const OwnedFd fd_;
  uint64_t size_;
  std::deque<std::span<std::byte>> mapped_;
};

// A file of packed weights, mapped. Immutable.
class PackedWeightsFile {
 public:
  // NOT_FOUND if there is none. PERMISSION_DENIED if another user has written it, or may write it.
  // DATA_LOSS, which names the file and says to remove it, if it is not a whole file of this
  // version, or if bytes of a part are not those that were written: reads all of them.
  static absl::StatusOr<std::unique_ptr<PackedWeightsFile>> Open(const std::string& path);

  const v1::PackedWeights& contents() const { return contents_; }
  // The bytes of a part. The memory is read-only.
  std::span<std::byte> BytesOf(const v1::PackedWeights::Part& part) const;
  absl::Status Error(const std::string& what) const;  // DATA_LOSS with the path

 private:
  PackedWeightsFile(std::string path, MappedFile file)
      : path_(std::move(path)), file_(std::move(file)) {}
  absl::Status ReadContents();
  absl::Status CheckParts() const;

  const std::string path_;
  const MappedFile file_;
  v1::PackedWeights contents_;
};

}  // namespace penstock
