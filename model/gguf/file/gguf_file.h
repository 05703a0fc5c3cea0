#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/gguf/file/ggml_types.h"

namespace penstock {

// The types of metadata values, with GGUF's numbers.
enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12
};

// A metadata value: a number, a boolean or a string, or an array of them. A view into the file.
struct GgufValue {
  GgufType type = GgufType::kU8;  // of the value, or of an array's elements; never kArray
  bool is_array = false;
  size_t count = 1;                       // elements
  std::span<const std::byte> numbers;     // the elements, little-endian, unaligned; not for strings
  std::vector<std::string_view> strings;  // the elements of type kString; any bytes

  // Element `i`, which must be below count; absent if the type is another, or for Int if an
  // unsigned number exceeds int64_t. Int reads integers, Float integers and floats.
  std::optional<int64_t> Int(size_t i = 0) const;
  std::optional<double> Float(size_t i = 0) const;
  std::optional<bool> Bool(size_t i = 0) const;
};

// One tensor: blocks of `type` along the innermost extent, at bytes [begin, end) of its file.
struct GgufTensor {
  std::string_view name;
  const GgmlType* type = nullptr;
  std::vector<int64_t> shape;  // elements, outermost extent first (the file has them reversed)
  size_t begin = 0;
  size_t end = 0;
  std::span<const std::byte> bytes;  // the file's bytes [begin, end)
  size_t part = 0;                   // the file of a split model (GgufModel)
};

// A parsed GGUF file: metadata and the places of tensors. Views into the file's bytes, which must
// outlive it. Plain data.
//
// This room, model/gguf, reads GGUF files as the Hugging Face directories that they were converted
// from: metadata become the texts of config.json, tokenizer.json and tokenizer_config.json, and
// tensors get Hugging Face's names. It may use base/ only. It does not know how these texts are
// parsed, and computes with no weights.
struct GgufFile {
  std::string name;  // for errors
  uint32_t version = 0;
  std::map<std::string_view, GgufValue> metadata;
  std::vector<GgufTensor> tensors;  // sorted by name
  size_t data_begin = 0;            // offset of the tensors' bytes: header and padding precede it

  const GgufValue* Find(std::string_view key) const;          // nullptr: absent
  const GgufTensor* FindTensor(std::string_view name) const;  // nullptr: absent
};

// Reads the header of a GGUF file (ggml's docs/gguf.md), versions 2 and 3, little-endian. Checks it
// against the size of `file`: every tensor lies within the file at a multiple of general.alignment,
// holds whole blocks, has a type of FindGgmlType, and overlaps no other. Limits: 256 MiB of header,
// 65,536 metadata pairs, 2^24 elements of an array, 2^16 tensors, 4 extents, names of 1,024 bytes.
// Returns INVALID_ARGUMENT or, for a file that is too short, DATA_LOSS, naming `file_name`, the
// key or the tensor, and the limit.
absl::StatusOr<GgufFile> ParseGguf(std::span<const std::byte> file, std::string file_name);

}  // namespace penstock
