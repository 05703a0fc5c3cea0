#include "model/checkpoint/quantisation_config.h"

#include <string>

#include "model/checkpoint/json_fields.h"

namespace penstock {
namespace {

constexpr char kWhere[] = "config.json: quantization_config.";
constexpr int64_t kMaxGroup = 1 << 20;
constexpr size_t kMaxConfigGroups = 64;

// -1 and absence mean whole rows.
int64_t GroupSize(JsonFields& fields) {
  const int64_t size = fields.Int("group_size", -1, kMaxGroup, -1);
  if (size == 0) fields.Fail("group_size", "-1 (whole rows) or a positive number");
  return size < 0 ? 0 : size;
}

// Activations of FP8 matrices are not rounded to FP8, with whatever scales a file asks for that.
// Those of integers become integers of 16 bits, so a file that asks for 8 bits of dynamic scale is
// run more exactly than it asks for. Anything else is refused.
absl::Status CheckActivations(const std::string& where, bool floats, bool whole_bytes,
                              JsonFields& group) {
  const nlohmann::json* activations = group.Object("input_activations");
  if (activations == nullptr) return group.status();
  if (floats) {
    JsonFields fields(*activations, where + "input_activations.");
    fields.Int("num_bits", 8, 8);
    fields.Choice("type", {"float"});
    return fields.status();
  }
  if (!whole_bytes) group.Fail("input_activations", "absent in pack-quantized files");
  RETURN_IF_ERROR(group.status());
  JsonFields fields(*activations, where + "input_activations.");
  fields.Int("num_bits", 8, 8);
  fields.Choice("type", {"int"}, "int");
  if (!fields.Bool("dynamic", false)) fields.Fail("dynamic", "true");
  return fields.status();
}

// Sets how many inputs and outputs share a scale. Groups of one file agree on it.
void SetGroup(const std::string& key, int64_t rows, int64_t inputs, JsonFields& fields,
              QuantisationConfig& config) {
  const bool set = config.group_size != 0;
  if (set && (config.group_size != inputs || config.block_rows != rows)) {
    fields.Fail(key, "the same in all config_groups");
  }
  config.group_size = inputs;
  config.block_rows = rows;
}

// A block of outputs and inputs: two numbers.
void ReadBlock(const std::string& key, JsonFields& fields, QuantisationConfig& config) {
  const std::vector<int64_t> block = fields.IntOrList(key, 1, kMaxGroup, 2);
  if (block.size() != 2) return fields.Fail(key, "a list of two numbers");
  SetGroup(key, block[0], block[1], fields, config);
}

void ReadIntegerWeights(JsonFields& fields, QuantisationConfig& config) {
  const int64_t bits = fields.Int("num_bits", 4, 8, 8);
  if (bits != 4 && bits != 8) fields.Fail("num_bits", "4 or 8");
  const std::string strategy = fields.Choice("strategy", {"group", "channel", "tensor"},
                                             fields.Has("group_size") ? "group" : "channel");
  if (strategy == "group") SetGroup("group_size", 1, GroupSize(fields), fields, config);
}

void ReadFloatWeights(JsonFields& fields, QuantisationConfig& config) {
  config.floats = true;
  fields.Int("num_bits", 8, 8, 8);
  if (!fields.Bool("symmetric", true)) fields.Fail("symmetric", "true");
  const std::string strategy = fields.Choice("strategy", {"group", "channel", "tensor", "block"});
  if (strategy == "group") SetGroup("group_size", 1, GroupSize(fields), fields, config);
  if (strategy == "block") ReadBlock("block_structure", fields, config);
}

// One of config_groups. Sets the group's size in `config` if it has one.
absl::Status ReadConfigGroup(const nlohmann::json& object, const std::string& where,
                             const std::string& format_above, QuantisationConfig& config) {
  JsonFields group(object, where);
  const std::string format = group.Choice(
      "format", {"pack-quantized", "int-quantized", "naive-quantized", "float-quantized"},
      format_above);
  const nlohmann::json* weights = group.Object("weights");
  if (weights == nullptr) group.Fail("weights", "an object");
  if (group.Has("output_activations")) group.Fail("output_activations", "absent");
  RETURN_IF_ERROR(group.status());
  JsonFields fields(*weights, where + "weights.");
  const bool floats =
      format == "float-quantized" ||
      (format == "naive-quantized" && fields.Choice("type", {"int", "float"}, "int") == "float");
  if (floats) {
    fields.Choice("type", {"float"});
    ReadFloatWeights(fields, config);
  } else {
    fields.Choice("type", {"int"}, "int");
    ReadIntegerWeights(fields, config);
  }
  RETURN_IF_ERROR(CheckActivations(where, floats, format != "pack-quantized", group));
  return fields.status();
}

absl::StatusOr<QuantisationConfig> ReadCompressedTensors(const nlohmann::json& object) {
  JsonFields fields(object, kWhere);
  QuantisationConfig config{.method = QuantisationConfig::Method::kCompressedTensors};
  const std::string format = fields.Choice(
      "format",
      {"pack-quantized", "int-quantized", "naive-quantized", "float-quantized", "mixed-precision"});
  if (const nlohmann::json* sparsity = fields.Object("sparsity_config")) {
    if (!sparsity->empty() && sparsity->value("format", nlohmann::json()) != "dense") {
      fields.Fail("sparsity_config", "absent, or of format dense");
    }
  }
  if (const nlohmann::json* transform = fields.Object("transform_config")) {
    if (!transform->empty()) fields.Fail("transform_config", "empty");
  }
  config.has_kv_scales = fields.Object("kv_cache_scheme") != nullptr;
  const nlohmann::json* groups = fields.Object("config_groups");
  if (groups == nullptr || groups->empty() || groups->size() > kMaxConfigGroups) {
    fields.Fail("config_groups", fmt::format("an object of 1 to {} groups", kMaxConfigGroups));
  }
  RETURN_IF_ERROR(fields.status());
  for (const auto& [name, group] : groups->items()) {
    const std::string where = fmt::format("{}config_groups.{}.", kWhere, name.substr(0, 40));
    if (!group.is_object()) return InvalidArgument("{} is not an object", where);
    RETURN_IF_ERROR(ReadConfigGroup(group, where, format, config));
  }
  return config;
}

absl::StatusOr<QuantisationConfig> ReadGptqConfig(const nlohmann::json& object) {
  JsonFields fields(object, kWhere);
  QuantisationConfig config{.method = QuantisationConfig::Method::kGptq};
  const int64_t bits = fields.Int("bits", 2, 8);
  if (bits != 4 && bits != 8) fields.Fail("bits", "4 or 8");
  config.group_size = GroupSize(fields);
  const std::string key = fields.Has("checkpoint_format") ? "checkpoint_format" : "format";
  const std::string form = fields.Choice(key, {"gptq", "gptq_v2"}, "");
  if (form == "gptq") config.zero_form = QuantisationConfig::ZeroForm::kLessByOne;
  if (form == "gptq_v2") config.zero_form = QuantisationConfig::ZeroForm::kAsIs;
  RETURN_IF_ERROR(fields.status());
  return config;
}

absl::StatusOr<QuantisationConfig> ReadAwqConfig(const nlohmann::json& object) {
  JsonFields fields(object, kWhere);
  QuantisationConfig config{.method = QuantisationConfig::Method::kAwq};
  fields.Int(fields.Has("w_bit") ? "w_bit" : "bits", 4, 4);
  fields.Choice("version", {"gemm", "GEMM"}, "gemm");
  if (!fields.Bool("zero_point", true)) fields.Fail("zero_point", "true");
  config.group_size = GroupSize(fields);
  RETURN_IF_ERROR(fields.status());
  return config;
}

// DeepSeek's and Qwen's FP8: blocks with weight_scale_inv; without blocks a scale a tensor or row.
absl::StatusOr<QuantisationConfig> ReadFp8Config(const nlohmann::json& object) {
  JsonFields fields(object, kWhere);
  QuantisationConfig config{.method = QuantisationConfig::Method::kFp8, .floats = true};
  fields.Choice("fmt", {"e4m3", "float8_e4m3fn"}, "e4m3");
  fields.Choice("activation_scheme", {"dynamic", "static"}, "dynamic");
  fields.Choice("scale_fmt", {"ue8m0", "float"}, "float");
  if (fields.Has("weight_block_size")) ReadBlock("weight_block_size", fields, config);
  RETURN_IF_ERROR(fields.status());
  return config;
}

}  // namespace

std::string_view MethodName(QuantisationConfig::Method method) {
  switch (method) {
    case QuantisationConfig::Method::kNone:
      return "none";
    case QuantisationConfig::Method::kCompressedTensors:
      return "compressed-tensors";
    case QuantisationConfig::Method::kGptq:
      return "gptq";
    case QuantisationConfig::Method::kAwq:
      return "awq";
    case QuantisationConfig::Method::kFp8:
      return "fp8";
    case QuantisationConfig::Method::kMxfp4:
      return "mxfp4";
  }
  return "unknown";
}

absl::StatusOr<QuantisationConfig> ParseQuantisationConfig(const nlohmann::json& object) {
  JsonFields fields(object, kWhere);
  const std::string method =
      fields.Choice("quant_method", {"compressed-tensors", "gptq", "awq", "fp8", "mxfp4"});
  RETURN_IF_ERROR(fields.status());
  // The format has no parameters; what it does not convert has no blocks.
  if (method == "mxfp4") return QuantisationConfig{.method = QuantisationConfig::Method::kMxfp4};
  if (method == "fp8") return ReadFp8Config(object);
  if (method == "compressed-tensors") return ReadCompressedTensors(object);
  return method == "gptq" ? ReadGptqConfig(object) : ReadAwqConfig(object);
}

}  // namespace penstock
