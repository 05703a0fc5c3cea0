#include "model/packed/packed_weights_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/errno_status.h"

namespace penstock {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kMagic = 0x5354484749455750;  // "PWEIGHTS"
// It changes with the layout of the file, of PackedMatrix or of QuantisedMatrix.
constexpr uint64_t kVersion = 1;
constexpr uint64_t kContentsBytesMax = uint64_t{1} << 30;

struct Header {
  uint64_t magic = kMagic;
  uint64_t version = kVersion;
  uint64_t contents_at = 0;
  uint64_t contents_bytes = 0;
  uint64_t contents_hash = 0;
};

uint64_t InPages(uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// In a directory that others may write, they must not put weights in our place.
absl::Status CheckOwner(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return ErrnoStatus(errno, fmt::format("opening {}", path));
  const bool ours = info.st_uid == geteuid() || info.st_uid == 0;
  if (ours && S_ISREG(info.st_mode) && (info.st_mode & (S_IWGRP | S_IWOTH)) == 0) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(fmt::format(
      "{} must be a file that only this process's user or root may write; remove it, or give "
      "another packed_weights_dir",
      path));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PackedWeightsWriter>> PackedWeightsWriter::Create(
    const std::string& path) {
  std::string temporary = path + "-XXXXXX";
  const int fd = mkostemp(temporary.data(), O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, fmt::format("making the file of packed weights {}", path));
  return std::unique_ptr<PackedWeightsWriter>(
      new PackedWeightsWriter(path, std::move(temporary), OwnedFd(fd)));
}

PackedWeightsWriter::PackedWeightsWriter(std::string path, std::string temporary, OwnedFd fd)
    : path_(std::move(path)),
      temporary_(std::move(temporary)),
      fd_(std::move(fd)),
      size_(InPages(sizeof(Header))) {}

PackedWeightsWriter::~PackedWeightsWriter() {
  for (const std::span<std::byte> memory : mapped_) munmap(memory.data(), memory.size());
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

absl::Status PackedWeightsWriter::Write(std::span<const std::byte> bytes, uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t written =
        pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      return ErrnoStatus(
          errno, fmt::format("writing packed weights behind {} bytes of {}", offset, path_));
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
  return absl::OkStatus();
}

absl::Status PackedWeightsWriter::Append(std::span<const std::byte> bytes,
                                         v1::PackedWeights::Part& part) {
  part.set_offset(size_);
  part.set_bytes(bytes.size());
  part.set_hash(XXH3_64bits(bytes.data(), bytes.size()));
  RETURN_IF_ERROR(Write(bytes, size_));
  size_ = InPages(size_ + bytes.size());
  return absl::OkStatus();
}

absl::StatusOr<std::byte*> PackedWeightsWriter::Map(const v1::PackedWeights::Part& first,
                                                    size_t bytes) {
  void* memory =
      mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd_.get(), static_cast<off_t>(first.offset()));
  if (memory == MAP_FAILED) return ErrnoStatus(errno, fmt::format("mapping {}", path_));
  auto* begin = static_cast<std::byte*>(memory);
  mapped_.emplace_back(begin, bytes);
  return begin;
}

absl::Status PackedWeightsWriter::Finish(const v1::PackedWeights& contents) {
  const std::string text = contents.SerializeAsString();
  const Header header{.contents_at = size_,
                      .contents_bytes = text.size(),
                      .contents_hash = XXH3_64bits(text.data(), text.size())};
  RETURN_IF_ERROR(Write(std::as_bytes(std::span(text)), size_));
  RETURN_IF_ERROR(Write(std::as_bytes(std::span(&header, 1)), 0));
  // The name must not come to the disk before the bytes.
  if (fdatasync(fd_.get()) != 0) return ErrnoStatus(errno, fmt::format("writing {}", path_));
  if (rename(temporary_.c_str(), path_.c_str()) != 0) {
    return ErrnoStatus(errno, fmt::format("naming {}", path_));
  }
  temporary_.clear();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<PackedWeightsFile>> PackedWeightsFile::Open(
    const std::string& path) {
  RETURN_IF_ERROR(CheckOwner(path));
  ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  std::unique_ptr<PackedWeightsFile> file(new PackedWeightsFile(path, std::move(mapped)));
  RETURN_IF_ERROR(file->ReadContents());
  RETURN_IF_ERROR(file->CheckParts());
  return file;
}

absl::Status PackedWeightsFile::Error(const std::string& what) const {
  return DataLoss("{} {}; remove the file, and the next worker writes it anew", path_, what);
}

absl::Status PackedWeightsFile::ReadContents() {
  const std::span<const std::byte> bytes = file_.bytes();
  Header header;
  if (bytes.size() < sizeof(header)) return Error("is shorter than its header");
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kMagic || header.version != kVersion) {
    return Error("is not a file of packed weights of this version");
  }
  if (header.contents_at > bytes.size() ||
      header.contents_bytes > std::min(bytes.size() - header.contents_at, kContentsBytesMax)) {
    return Error(fmt::format("has {} bytes, fewer than its header says", bytes.size()));
  }
  const auto text = bytes.subspan(header.contents_at, header.contents_bytes);
  if (XXH3_64bits(text.data(), text.size()) != header.contents_hash ||
      !contents_.ParseFromArray(text.data(), static_cast<int>(text.size()))) {
    return Error("has other contents than were written");
  }
  return absl::OkStatus();
}

absl::Status PackedWeightsFile::CheckParts() const {
  const uint64_t size = file_.bytes().size();
  for (const v1::PackedWeights::Answer& answer : contents_.answers()) {
    for (const v1::PackedWeights::Part& part : answer.parts()) {
      if (part.offset() > size || part.bytes() > size - part.offset()) {
        return Error(fmt::format("ends before byte {} of a matrix", part.offset()));
      }
      const std::span<const std::byte> bytes = BytesOf(part);
      ReadAhead(bytes);
      if (XXH3_64bits(bytes.data(), bytes.size()) != part.hash()) {
        return Error(fmt::format("has other bytes from {} on than were written", part.offset()));
      }
    }
  }
  return absl::OkStatus();
}

std::span<std::byte> PackedWeightsFile::BytesOf(const v1::PackedWeights::Part& part) const {
  const auto bytes = file_.bytes().subspan(part.offset(), part.bytes());
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};
}

}  // namespace penstock
