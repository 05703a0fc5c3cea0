#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/printable_name.h"
#include "base/status.h"

namespace penstock {

// One tensor of a safetensors file: row-major, little-endian, at bytes [begin, end) of the file,
// not necessarily aligned to its element size.
struct SafetensorsTensor {
  std::string name;
  std::string dtype;           // as in the file: "BF16", "F16", "F32", ...
  std::vector<int64_t> shape;  // [] is a scalar
  size_t begin = 0;
  size_t end = 0;
};

// The parsed header of a safetensors file.
struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;  // sorted by name
  size_t data_begin = 0;                   // offset of the first tensor's bytes in the file
};

// Reads the header of a safetensors file (the format of huggingface/safetensors: u64 length, JSON,
// data) and checks it against the size of `file`: every byte of the data belongs to exactly one
// tensor, and every tensor has the size that its shape and dtype require. Limits: 100,000,000 bytes
// of header, 2^20 tensors, rank 8, names of 1,024 bytes. Returns INVALID_ARGUMENT or, for a file
// that is too short, DATA_LOSS, naming `file_name`, tensor and field.
absl::StatusOr<SafetensorsHeader> ParseSafetensors(std::span<const std::byte> file,
                                                   std::string_view file_name);

}  // namespace penstock
