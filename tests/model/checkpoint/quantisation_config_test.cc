#include "model/checkpoint/quantisation_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;
using Method = QuantisationConfig::Method;
using ZeroForm = QuantisationConfig::ZeroForm;

Json Compressed(const Json& weights = Json::object(), const Json& group = Json::object(),
                const Json& top = Json::object()) {
  Json all_weights = {{"num_bits", 4},
                      {"type", "int"},
                      {"symmetric", true},
                      {"strategy", "group"},
                      {"group_size", 128},
                      {"actorder", nullptr},
                      {"block_structure", nullptr}};
  all_weights.update(weights);
  Json all_group = {{"targets", {"Linear"}}, {"weights", all_weights}};
  all_group.update(group);
  Json all = {{"quant_method", "compressed-tensors"},
              {"format", "pack-quantized"},
              {"ignore", {"lm_head"}},
              {"kv_cache_scheme", nullptr},
              {"config_groups", {{"group_0", all_group}}}};
  all.update(top);
  return all;
}

Json Gptq(const Json& changes = Json::object()) {
  Json all = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 128}, {"desc_act", false}};
  all.update(changes);
  return all;
}

Json Awq(const Json& changes = Json::object()) {
  Json all = {{"quant_method", "awq"},
              {"bits", 4},
              {"group_size", 64},
              {"version", "gemm"},
              {"zero_point", true}};
  all.update(changes);
  return all;
}

Json Fp8(const Json& changes = Json::object()) {
  Json all = {{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"weight_block_size", {128, 128}}};
  all.update(changes);
  return all;
}

Json Floats(const Json& weights = Json::object(), const Json& group = Json::object()) {
  Json all = {{"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}, {"group_size", nullptr}};
  all.update(weights);
  return Compressed(all, group, {{"format", "float-quantized"}});
}

QuantisationConfig Parsed(const Json& json) {
  const auto config = ParseQuantisationConfig(json);
  EXPECT_TRUE(config.ok()) << Message(config.status());
  return config.value_or(QuantisationConfig{});
}

TEST(QuantisationConfigTest, ReadsEveryMethod) {
  EXPECT_EQ(Parsed(Compressed()),
            (QuantisationConfig{.method = Method::kCompressedTensors, .group_size = 128}));
  EXPECT_EQ(Parsed(Compressed({{"strategy", "channel"}, {"group_size", nullptr}})).group_size, 0);
  EXPECT_EQ(Parsed(Gptq()), (QuantisationConfig{.method = Method::kGptq, .group_size = 128}));
  EXPECT_EQ(Parsed(Gptq({{"group_size", -1}})).group_size, 0);
  EXPECT_EQ(Parsed(Gptq({{"checkpoint_format", "gptq"}})).zero_form, ZeroForm::kLessByOne);
  EXPECT_EQ(Parsed(Gptq({{"format", "gptq_v2"}})).zero_form, ZeroForm::kAsIs);
  EXPECT_EQ(Parsed(Awq()), (QuantisationConfig{.method = Method::kAwq, .group_size = 64}));
  EXPECT_EQ(Parsed(Awq({{"bits", nullptr}, {"w_bit", 4}, {"version", "GEMM"}})).group_size, 64);
}

TEST(QuantisationConfigTest, ReadsMxfp4) {
  const auto config =
      ParseQuantisationConfig({{"quant_method", "mxfp4"}, {"modules_to_not_convert", {"lm_head"}}});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->method, Method::kMxfp4);
  EXPECT_EQ(MethodName(config->method), "mxfp4");
}

TEST(QuantisationConfigTest, ReadsTheBlocksOfFloats) {
  const QuantisationConfig fp8 = Parsed(Fp8({{"weight_block_size", {96, 128}}}));
  EXPECT_EQ(fp8, (QuantisationConfig{
                     .method = Method::kFp8, .group_size = 128, .block_rows = 96, .floats = true}));
  EXPECT_EQ(Parsed(Fp8({{"weight_block_size", nullptr}, {"activation_scheme", "static"}})),
            (QuantisationConfig{.method = Method::kFp8, .floats = true}));
  const Json fixed = {{"num_bits", 8}, {"type", "float"}, {"dynamic", false}};
  EXPECT_EQ(Parsed(Floats(Json::object(), {{"input_activations", fixed}})),
            (QuantisationConfig{.method = Method::kCompressedTensors, .floats = true}));
  const Json block = {{"strategy", "block"}, {"block_structure", {64, 128}}};
  EXPECT_EQ(Parsed(Floats(block)).block_rows, 64);
  EXPECT_EQ(Parsed(Floats({{"strategy", "group"}, {"group_size", 32}})).group_size, 32);
}

TEST(QuantisationConfigTest, ActivationsMayBeDynamicBytesIfTheWeightsAreBytes) {
  const Json dynamic = {{"num_bits", 8}, {"type", "int"}, {"dynamic", true}};
  EXPECT_TRUE(
      ParseQuantisationConfig(Compressed({{"num_bits", 8}}, {{"input_activations", dynamic}},
                                         {{"format", "int-quantized"}}))
          .ok());
}

TEST(QuantisationConfigTest, KnowsOfScalesForTheCache) {
  EXPECT_FALSE(Parsed(Compressed()).has_kv_scales);
  const Json scheme = {{"kv_cache_scheme", {{"num_bits", 8}, {"type", "float"}}}};
  EXPECT_TRUE(Parsed(Compressed(Json::object(), Json::object(), scheme)).has_kv_scales);
}

struct RefusedQuantisation {
  std::string name;
  Json json;
  std::string error;
};

class QuantisationRefusalTest : public testing::TestWithParam<RefusedQuantisation> {};

TEST_P(QuantisationRefusalTest, NamesTheField) {
  const auto config = ParseQuantisationConfig(GetParam().json);
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(config.status()),
              HasSubstr("config.json: quantization_config." + GetParam().error));
}

const Json kNone = Json::object();

INSTANTIATE_TEST_SUITE_P(
    Fields, QuantisationRefusalTest,
    testing::Values(
        RefusedQuantisation{"no_method", Json{{"bits", 4}}, "quant_method is missing"},
        RefusedQuantisation{"bitsandbytes", Json{{"quant_method", "bitsandbytes"}},
                            "quant_method is \"bitsandbytes\", allowed is one of "
                            "compressed-tensors, gptq, awq, fp8"},
        RefusedQuantisation{"fp8_fmt", Fp8({{"fmt", "e5m2"}}), "fmt is \"e5m2\""},
        RefusedQuantisation{"fp8_scheme", Fp8({{"activation_scheme", "none"}}),
                            "activation_scheme is \"none\""},
        RefusedQuantisation{"fp8_block", Fp8({{"weight_block_size", {128}}}),
                            "weight_block_size is a list, allowed is a list of two numbers"},
        RefusedQuantisation{"fp8_empty_block", Fp8({{"weight_block_size", {128, 0}}}),
                            "weight_block_size"},
        RefusedQuantisation{"float_of_six_bits", Floats({{"num_bits", 6}}),
                            "config_groups.group_0.weights.num_bits"},
        RefusedQuantisation{"float_integers", Floats({{"type", "int"}}),
                            "config_groups.group_0.weights.type is \"int\""},
        RefusedQuantisation{"float_zero_points", Floats({{"symmetric", false}}),
                            "config_groups.group_0.weights.symmetric is false"},
        RefusedQuantisation{"float_without_block", Floats({{"strategy", "block"}}),
                            "config_groups.group_0.weights.block_structure"},
        RefusedQuantisation{
            "float_activations",
            Floats(kNone, {{"input_activations", {{"num_bits", 8}, {"type", "int"}}}}),
            "config_groups.group_0.input_activations.type is \"int\""},
        RefusedQuantisation{"format", Compressed(kNone, kNone, {{"format", "marlin-24"}}),
                            "format is \"marlin-24\""},
        RefusedQuantisation{"no_groups", Compressed(kNone, kNone, {{"config_groups", kNone}}),
                            "config_groups is an object, allowed is an object of 1 to 64"},
        RefusedQuantisation{"group_list",
                            Compressed(kNone, kNone, {{"config_groups", {{"group_0", 3}}}}),
                            "config_groups.group_0. is not an object"},
        RefusedQuantisation{
            "sparse",
            Compressed(kNone, kNone, {{"sparsity_config", {{"format", "sparse-24-bitmask"}}}}),
            "sparsity_config"},
        RefusedQuantisation{"transform",
                            Compressed(kNone, kNone, {{"transform_config", {{"a", 1}}}}),
                            "transform_config"},
        RefusedQuantisation{"float", Compressed({{"type", "float"}}),
                            "config_groups.group_0.weights.type is \"float\""},
        RefusedQuantisation{"three_bits", Compressed({{"num_bits", 3}}), "config_groups.group_0"},
        RefusedQuantisation{"six_bits", Compressed({{"num_bits", 6}}),
                            "config_groups.group_0.weights.num_bits is 6, allowed is 4 or 8"},
        RefusedQuantisation{"block", Compressed({{"strategy", "block"}}),
                            "config_groups.group_0.weights.strategy is \"block\""},
        RefusedQuantisation{"activations",
                            Compressed(kNone, {{"input_activations", {{"num_bits", 8}}}}),
                            "config_groups.group_0.input_activations"},
        RefusedQuantisation{
            "static_activations",
            Compressed(kNone, {{"input_activations", {{"num_bits", 8}, {"dynamic", false}}}},
                       {{"format", "int-quantized"}}),
            "config_groups.group_0.input_activations.dynamic is false"},
        RefusedQuantisation{"outputs", Compressed(kNone, {{"output_activations", kNone}}),
                            "config_groups.group_0.output_activations"},
        RefusedQuantisation{"gptq_bits", Gptq({{"bits", 3}}), "bits is 3, allowed is 4 or 8"},
        RefusedQuantisation{"gptq_group", Gptq({{"group_size", 0}}), "group_size is 0"},
        RefusedQuantisation{"gptq_marlin", Gptq({{"checkpoint_format", "marlin"}}),
                            "checkpoint_format is \"marlin\""},
        RefusedQuantisation{"awq_bits", Awq({{"bits", 8}}), "bits is 8"},
        RefusedQuantisation{"awq_gemv", Awq({{"version", "gemv"}}), "version is \"gemv\""},
        RefusedQuantisation{"awq_symmetric", Awq({{"zero_point", false}}), "zero_point is false"}),
    [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace penstock
