#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/status.h"

namespace penstock {

// The quantised format of a checkpoint, from quantization_config of config.json. Which matrices are
// quantised, and to how many bits, follows from the tensors that exist. Plain data.
struct QuantisationConfig {
  enum class Method { kNone, kCompressedTensors, kGptq, kAwq, kFp8, kMxfp4 };
  // How GPTQ's files store zero points ("gptq" or "gptq_v2").
  enum class ZeroForm { kUnknown, kLessByOne, kAsIs };

  Method method = Method::kNone;
  int64_t group_size = 0;  // inputs that share a scale; 0: a whole row
  int64_t block_rows = 1;  // outputs that share a scale, if group_size is not 0
  bool floats = false;     // some matrices are FP8 numbers (E4M3)
  ZeroForm zero_form = ZeroForm::kUnknown;
  // The checkpoint has scales for an FP8 cache of keys and values, which are not used: pages have
  // scales of their own.
  bool has_kv_scales = false;

  bool operator==(const QuantisationConfig&) const = default;
};

// As in config.json: "none", "compressed-tensors", "gptq", "awq", "fp8", "mxfp4".
std::string_view MethodName(QuantisationConfig::Method method);

// Parses the value of quantization_config. Returns INVALID_ARGUMENT that names the field and the
// allowed values; refuses every format that would not run as the checkpoint means it.
absl::StatusOr<QuantisationConfig> ParseQuantisationConfig(const nlohmann::json& object);

}  // namespace penstock
