#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/quantised_matrix.h"

namespace penstock {

// The parts of one quantised block, as QuantisedRow has them.
struct UnpackedBlock {
  static constexpr int kElementsMax = 256;
  static constexpr int kGroupsMax = 16;

  uint8_t codes[kElementsMax];  // [BlockType::elements]
  float scales[kGroupsMax];     // [elements / group]
  float offsets[kGroupsMax];    // set if the format has offsets
  float scale_factor;           // set if the format is two_level(): a block is one run
  float offset_factor;          // likewise, if it has offsets
};

// A kind of quantised block of ggml: consecutive inputs of one output, with their scales. Sources:
// ggml's ggml-quants.c and the Python package gguf, whose values each weight equals.
struct BlockType {
  std::string_view name;   // as ggml has it: "Q4_K"
  int64_t elements;        // of a block
  int64_t bytes;           // of a block
  QuantisedFormat format;  // that holds its weights exactly
  void (*unpack)(const std::byte* block, UnpackedBlock& target);
};

// MXFP4 (OCP Microscaling Formats 1.0), and the scale of a byte of exponent: 2^(exponent - 128),
// because the integers of CodeType::kE2m1 are twice its numbers.
inline constexpr QuantisedFormat kMxfp4Format = {
    .code = CodeType::kE2m1, .bits = 4, .group = 32, .scale = ScaleType::kBf16};
float Mxfp4Scale(int exponent);

// The type with this name, or null if matrices of it do not run.
const BlockType* BlockTypeNamed(std::string_view name);

}  // namespace penstock
