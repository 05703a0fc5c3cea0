#include "model/gguf/file/ggml_types.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace penstock {
namespace {

// ggml's numbers, names and block sizes (ggml/include/ggml.h, ggml/src/ggml-common.h).
constexpr std::array<GgmlType, 14> kTypes = {{{0, "F32", 1, 4},
                                              {1, "F16", 1, 2},
                                              {2, "Q4_0", 32, 18},
                                              {3, "Q4_1", 32, 20},
                                              {6, "Q5_0", 32, 22},
                                              {7, "Q5_1", 32, 24},
                                              {8, "Q8_0", 32, 34},
                                              {12, "Q4_K", 256, 144},
                                              {13, "Q5_K", 256, 176},
                                              {14, "Q6_K", 256, 210},
                                              {20, "IQ4_NL", 32, 18},
                                              {23, "IQ4_XS", 256, 136},
                                              {30, "BF16", 1, 2},
                                              {39, "MXFP4", 32, 17}}};

struct NamedType {
  uint32_t id;
  std::string_view name;
};
// Types that are refused, so that an error can name them.
constexpr std::array<NamedType, 19> kOthers = {{{9, "Q8_1"},
                                                {10, "Q2_K"},
                                                {11, "Q3_K"},
                                                {15, "Q8_K"},
                                                {16, "IQ2_XXS"},
                                                {17, "IQ2_XS"},
                                                {18, "IQ3_XXS"},
                                                {19, "IQ1_S"},
                                                {21, "IQ3_S"},
                                                {22, "IQ2_S"},
                                                {24, "I8"},
                                                {25, "I16"},
                                                {26, "I32"},
                                                {27, "I64"},
                                                {28, "F64"},
                                                {29, "IQ1_M"},
                                                {34, "TQ1_0"},
                                                {35, "TQ2_0"},
                                                {40, "NVFP4"}}};

}  // namespace

const GgmlType* FindGgmlType(uint32_t id) {
  const auto found = std::ranges::find(kTypes, id, &GgmlType::id);
  return found == kTypes.end() ? nullptr : &*found;
}

const GgmlType* FindGgmlType(std::string_view name) {
  const auto found = std::ranges::find(kTypes, name, &GgmlType::name);
  return found == kTypes.end() ? nullptr : &*found;
}

std::string DescribeGgmlType(uint32_t id) {
  const auto other = std::ranges::find(kOthers, id, &NamedType::id);
  return other == kOthers.end() ? fmt::format("{}", id) : fmt::format("{} ({})", other->name, id);
}

std::string GgmlTypeNames() {
  std::string names;
  for (const GgmlType& type : kTypes) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", type.name);
  }
  return names;
}

}  // namespace penstock
