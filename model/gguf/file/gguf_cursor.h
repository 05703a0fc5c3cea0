#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "base/status.h"

namespace penstock {

// Reads a GGUF header from its begin to its end, and never beyond `limit` bytes of the file.
// Errors have no context: the caller names file, key or tensor. One thread.
class GgufCursor {
 public:
  GgufCursor(std::span<const std::byte> file, size_t limit)
      : file_(file.first(std::min(file.size(), limit))), cut_(file.size() > limit) {}

  size_t at() const { return at_; }
  size_t rest() const { return file_.size() - at_; }

  // DATA_LOSS if the file ends before, INVALID_ARGUMENT if the limit is reached.
  absl::StatusOr<std::span<const std::byte>> Take(uint64_t bytes) {
    if (bytes > rest()) {
      if (cut_) {
        return InvalidArgument("needs {} bytes at byte {}, but a header has at most {}", bytes, at_,
                               file_.size());
      }
      return DataLoss("needs {} bytes at byte {}, {} follow: the file is truncated, fetch it again",
                      bytes, at_, rest());
    }
    const auto taken = file_.subspan(at_, bytes);
    at_ += bytes;
    return taken;
  }

  template <class T>
  absl::StatusOr<T> Number() {
    ASSIGN_OR_RETURN(const auto bytes, Take(sizeof(T)));
    T value;
    std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }

  // A string of at most `max_bytes`; any bytes.
  absl::StatusOr<std::string_view> String(uint64_t max_bytes) {
    ASSIGN_OR_RETURN(const uint64_t length, Number<uint64_t>());
    if (length > max_bytes) {
      return InvalidArgument("a string at byte {} has {} bytes, the limit is {}", at_, length,
                             max_bytes);
    }
    ASSIGN_OR_RETURN(const auto bytes, Take(length));
    return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }

 private:
  std::span<const std::byte> file_;
  bool cut_;
  size_t at_ = 0;
};

}  // namespace penstock
