#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <tuple>

#include "tests/model/gguf/config_of.h"

// What each architecture has of its own.
namespace penstock {
namespace {

using ::testing::HasSubstr;

TEST(GgufFamilyTest, Granite) {
  GgufWriter writer = WithTable(LlamaMetadata("granite"));
  EXPECT_THAT(ErrorOf(writer), HasSubstr("\"granite.attention.scale\" is missing"));
  writer.F32("granite.attention.scale", 0.0625f)
      .F32("granite.embedding_scale", 12)
      .F32("granite.residual_scale", 0.25f)
      .F32("granite.logit_scale", 8);
  const auto config = ConfigOf(writer);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ((*config)["architectures"], nlohmann::json({"GraniteForCausalLM"}));
  EXPECT_EQ((*config)["attention_multiplier"], 0.0625);
  EXPECT_EQ((*config)["embedding_multiplier"], 12.0);
  EXPECT_EQ((*config)["residual_multiplier"], 0.25);
  EXPECT_EQ((*config)["logits_scaling"], 8.0);
  EXPECT_THAT(ErrorOf(writer.Bool("granite.rope.scaling.finetuned", false)),
              HasSubstr("\"granite.rope.scaling.finetuned\" is false, allowed is true"));
}

TEST(GgufFamilyTest, Qwen2WithExperts) {
  GgufWriter writer = WithTable(LlamaMetadata("qwen2moe"));
  writer.U32("qwen2moe.expert_count", 8)
      .U32("qwen2moe.expert_used_count", 2)
      .U32("qwen2moe.expert_feed_forward_length", 24);
  EXPECT_THAT(ErrorOf(writer),
              HasSubstr("\"qwen2moe.expert_shared_feed_forward_length\" is missing"));
  writer.U32("qwen2moe.expert_shared_feed_forward_length", 40);
  const auto config = ConfigOf(writer);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ((*config)["architectures"], nlohmann::json({"Qwen2MoeForCausalLM"}));
  EXPECT_EQ((*config)["shared_expert_intermediate_size"], 40);
  EXPECT_EQ((*config)["moe_intermediate_size"], 24);
  EXPECT_EQ((*config)["norm_topk_prob"], false);
}

GgufWriter Phi3Metadata() {
  GgufWriter writer = LlamaMetadata("phi3");
  writer.U32("phi3.rope.dimension_count", 6)
      .U32("phi3.attention.sliding_window", 0)
      .U32("phi3.rope.scaling.original_context_length", 16);
  return writer;
}

TEST(GgufFamilyTest, Phi3) {
  auto config = ConfigOf(WithTable(Phi3Metadata()));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ((*config)["architectures"], nlohmann::json({"Phi3ForCausalLM"}));
  EXPECT_EQ((*config)["head_dim"], 8);
  EXPECT_EQ((*config)["partial_rotary_factor"], 0.75);
  EXPECT_FALSE(config->contains("sliding_window"));
  EXPECT_FALSE(config->contains("rope_scaling"));
  GgufWriter writer = WithTable(Phi3Metadata());
  writer.F32("phi3.rope.scaling.attn_factor", 1.25f)
      .Tensor("rope_factors_long.weight", "F32", {3}, 0x40)
      .Tensor("rope_factors_short.weight", "F32", {3}, 0x3f);
  config = ConfigOf(writer);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ((*config)["original_max_position_embeddings"], 16);
  const nlohmann::json& scaling = (*config)["rope_scaling"];
  EXPECT_EQ(scaling["rope_type"], "longrope");
  EXPECT_EQ(scaling["attention_factor"], 1.25);
  EXPECT_EQ(scaling["long_factor"].size(), 3);
  EXPECT_EQ(scaling["long_factor"][0], 3.0039215087890625);  // 0x40404040
}

TEST(GgufFamilyTest, RefusesHalfALongRope) {
  EXPECT_THAT(ErrorOf(WithTable(Phi3Metadata()).Tensor("rope_factors_long.weight", "F32", {3})),
              HasSubstr("\"rope_factors_short.weight\" is a tensor that is missing"));
  EXPECT_THAT(ErrorOf(WithTable(Phi3Metadata())
                          .Tensor("rope_factors_long.weight", "F32", {4})
                          .Tensor("rope_factors_short.weight", "F32", {4})),
              HasSubstr("is a tensor of F32 of shape [4], allowed is F32 of shape [3]"));
  EXPECT_THAT(ErrorOf(WithTable(Phi3Metadata()).F32("phi3.rope.scaling.attn_factor", 1.5f)),
              HasSubstr("\"phi3.rope.scaling.attn_factor\" is 1.5, allowed is 1 without"));
  EXPECT_THAT(ErrorOf(WithTable(LlamaMetadata("phi3")).U32("phi3.rope.dimension_count", 5)),
              HasSubstr("\"phi3.rope.dimension_count\" is 5, allowed is an even number"));
}

TEST(GgufFamilyTest, Mixtral) {
  GgufWriter writer = WithTable(LlamaMetadata());
  writer.U32("llama.expert_count", 8);
  EXPECT_THAT(ErrorOf(writer), HasSubstr("\"llama.expert_used_count\" is missing"));
  writer.U32("llama.expert_used_count", 2);
  const auto config = ConfigOf(writer);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ((*config)["architectures"], nlohmann::json({"MixtralForCausalLM"}));
  EXPECT_EQ((*config)["num_local_experts"], 8);
  EXPECT_EQ((*config)["num_experts_per_tok"], 2);
  EXPECT_EQ((*config)["intermediate_size"], 48);
}

GgufWriter Gemma2Metadata() {
  GgufWriter writer = LlamaMetadata("gemma2");
  writer.U32("gemma2.attention.sliding_window", 16)
      .F32("gemma2.attn_logit_softcapping", 50)
      .F32("gemma2.final_logit_softcapping", 30);
  return writer;
}

TEST(GgufFamilyTest, Gemma2) {
  const auto config = ConfigOf(WithTable(Gemma2Metadata()));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ((*config)["architectures"], nlohmann::json({"Gemma2ForCausalLM"}));
  EXPECT_EQ((*config)["hidden_activation"], "gelu_pytorch_tanh");
  EXPECT_EQ((*config)["query_pre_attn_scalar"], 8);
  EXPECT_EQ((*config)["sliding_window"], 16);
  EXPECT_EQ((*config)["sliding_window_pattern"], 2);
  EXPECT_EQ((*config)["attn_logit_softcapping"], 50.0);
  EXPECT_EQ((*config)["final_logit_softcapping"], 30.0);
  EXPECT_THAT(ErrorOf(WithTable(LlamaMetadata("gemma2"))),
              HasSubstr("\"gemma2.attention.sliding_window\" is missing"));
}

TEST(GgufFamilyTest, Gemma3) {
  GgufWriter writer = WithTable(LlamaMetadata("gemma3"));
  writer.U32("gemma3.attention.sliding_window", 16)
      .Text("gemma3.rope.scaling.type", "linear")
      .F32("gemma3.rope.scaling.factor", 8);
  auto config = ConfigOf(writer);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ((*config)["architectures"], nlohmann::json({"Gemma3ForCausalLM"}));
  EXPECT_EQ((*config)["sliding_window"], 16);
  EXPECT_EQ((*config)["sliding_window_pattern"], 6);
  EXPECT_EQ((*config)["rope_theta"], 500000.0);
  EXPECT_EQ((*config)["rope_local_base_freq"], 10000.0);
  EXPECT_EQ((*config)["rope_scaling"], nlohmann::json({{"rope_type", "linear"}, {"factor", 8.0}}));
  writer.F32("gemma3.rope.freq_base_swa", 20000)
      .Numbers("gemma3.attention.sliding_window_pattern", GgufType::kBool,
               std::vector<uint8_t>{0, 1});
  config = ConfigOf(writer);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ((*config)["rope_local_base_freq"], 20000.0);
  EXPECT_EQ((*config)["layer_types"], nlohmann::json({"full_attention", "sliding_attention"}));
}

TEST(GgufFamilyTest, Gemma3WithoutAWindow) {
  const auto config = ConfigOf(WithTable(LlamaMetadata("gemma3")));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ((*config)["sliding_window_pattern"], 1);
  GgufWriter pattern = WithTable(LlamaMetadata("gemma3"));
  pattern.U32("gemma3.attention.sliding_window", 16)
      .Numbers("gemma3.attention.sliding_window_pattern", GgufType::kBool, std::vector<uint8_t>{1});
  EXPECT_THAT(ErrorOf(pattern),
              HasSubstr("pattern\" is an array of 1 elements, allowed is an array "
                        "of 2 elements"));
}

// The files do not say it; the number of layers does.
TEST(GgufFamilyTest, ScoresOf27BHaveAnotherScale) {
  for (const auto& [architecture, layers, scalar] : {std::tuple{"gemma2", 46, 168},
                                                     {"gemma2", 42, 128},
                                                     {"gemma3", 62, 168},
                                                     {"gemma3", 48, 128}}) {
    const std::string a(architecture);
    GgufWriter writer;
    writer.Text("general.architecture", a)
        .U32(a + ".block_count", layers)
        .U32(a + ".context_length", 64)
        .U32(a + ".embedding_length", 5376)
        .U32(a + ".feed_forward_length", 48)
        .U32(a + ".attention.head_count", 32)
        .U32(a + ".attention.key_length", 128)
        .U32(a + ".attention.value_length", 128)
        .U32(a + ".attention.sliding_window", 16)
        .F32(a + ".attention.layer_norm_rms_epsilon", 1e-6f)
        .F32(a + ".rope.freq_base", 1e6f);
    if (a == "gemma2") {
      writer.F32("gemma2.attn_logit_softcapping", 50).F32("gemma2.final_logit_softcapping", 30);
    }
    const auto config = ConfigOf(WithTable(writer));
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ((*config)["query_pre_attn_scalar"], scalar) << a << layers;
  }
}

}  // namespace
}  // namespace penstock
