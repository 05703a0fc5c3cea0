#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace penstock {

// A type of tensors in GGUF files: numbers, or blocks of quantised numbers that lie along the
// innermost extent. Plain data.
struct GgmlType {
  uint32_t id = 0;        // as in the file (ggml's enum ggml_type)
  std::string_view name;  // as ggml names it: "F32", "BF16", "Q4_K"
  int64_t block_elements = 1;
  int64_t block_bytes = 0;
};

// Returns the type, or nullptr if Penstock does not run it. Any thread.
const GgmlType* FindGgmlType(uint32_t id);
const GgmlType* FindGgmlType(std::string_view name);

// For error messages. A type that may not run: "IQ2_XS (17)", or "99" if ggml has no such type; the
// names of those that run: "F32, F16, ...".
std::string DescribeGgmlType(uint32_t id);
std::string GgmlTypeNames();

}  // namespace penstock
