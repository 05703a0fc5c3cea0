#pragma once

#include <cstdint>
#include <string_view>

namespace penstock {

// A type of tensors in GGUF files: numbers, or blocks of quantised numbers that lie along the
// innermost extent. Plain data.
struct GgmlType {
  uint32_t id = 0;            // as in the file (ggml's enum ggml_type)
  std::string_view name;      // as ggml names it: "F32", "BF16", "Q4_K"
  int64_t block_elements = 1;
  int64_t block_bytes = 0;
};

// Returns the type, or nullptr if Penstock does not run it. Any thread.
const GgmlType* FindGgmlType(uint32_t id);
const GgmlType* FindGgmlType(std::string_view name);

// Formats a type for error messages, also one that does not run: "IQ2_XS (17)", "type 99".
std::string_view GgmlTypeName(uint32_t id);  // empty: ggml defines no such type

}  // namespace penstock
