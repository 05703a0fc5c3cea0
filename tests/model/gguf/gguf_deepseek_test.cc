#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/model/gguf/config_of.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

struct Sizes {
  uint32_t layers = 27;
  uint32_t experts = 64;
};

GgufWriter Experts(const Sizes& sizes) {
  GgufWriter writer;
  writer.Text("general.architecture", "deepseek2")
      .U32("deepseek2.block_count", sizes.layers)
      .U32("deepseek2.context_length", 163840)
      .U32("deepseek2.embedding_length", 2048)
      .U32("deepseek2.feed_forward_length", 10944)
      .U32("deepseek2.attention.head_count", 16)
      .F32("deepseek2.attention.layer_norm_rms_epsilon", 1e-6f)
      .U32("deepseek2.leading_dense_block_count", 1)
      .U32("deepseek2.expert_count", sizes.experts)
      .U32("deepseek2.expert_used_count", 6)
      .U32("deepseek2.expert_shared_count", 2)
      .U32("deepseek2.expert_feed_forward_length", 1408)
      .U32("deepseek2.rope.dimension_count", 64)
      .U32("deepseek2.attention.kv_lora_rank", 512)
      .Tensor("token_embd.weight", "Q8_0", {100, 32});
  return writer;
}

// As files were before kv_b_proj was cut into halves.
GgufWriter OldFile(const Sizes& sizes = {}) {
  GgufWriter writer = Experts(sizes);
  writer.U32("deepseek2.attention.head_count_kv", 16)
      .U32("deepseek2.attention.key_length", 192)
      .U32("deepseek2.attention.value_length", 128);
  return writer;
}

GgufWriter NewFile(const Sizes& sizes = {}) {
  GgufWriter writer = Experts(sizes);
  writer.U32("deepseek2.attention.head_count_kv", 1)
      .U32("deepseek2.attention.key_length", 576)
      .U32("deepseek2.attention.value_length", 512)
      .U32("deepseek2.attention.key_length_mla", 192)
      .U32("deepseek2.attention.value_length_mla", 128);
  return writer;
}

TEST(GgufDeepseekTest, V2Lite) {
  for (const GgufWriter& writer : {OldFile(), NewFile()}) {
    const auto config = ConfigOf(writer);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ((*config)["architectures"], nlohmann::json({"DeepseekV2ForCausalLM"}));
    EXPECT_EQ((*config)["num_key_value_heads"], 16);
    EXPECT_EQ((*config)["kv_lora_rank"], 512);
    EXPECT_TRUE((*config)["q_lora_rank"].is_null());
    EXPECT_EQ((*config)["qk_nope_head_dim"], 128);
    EXPECT_EQ((*config)["qk_rope_head_dim"], 64);
    EXPECT_EQ((*config)["v_head_dim"], 128);
    EXPECT_EQ((*config)["intermediate_size"], 10944);
    EXPECT_EQ((*config)["moe_intermediate_size"], 1408);
    EXPECT_EQ((*config)["n_routed_experts"], 64);
    EXPECT_EQ((*config)["num_experts_per_tok"], 6);
    EXPECT_EQ((*config)["n_shared_experts"], 2);
    EXPECT_EQ((*config)["first_k_dense_replace"], 1);
    EXPECT_EQ((*config)["routed_scaling_factor"], 1.0);
    EXPECT_EQ((*config)["norm_topk_prob"], false);
    EXPECT_EQ((*config)["topk_method"], "greedy");
    EXPECT_FALSE(config->contains("rope_scaling"));
  }
}

TEST(GgufDeepseekTest, V3) {
  GgufWriter writer = NewFile({.layers = 61, .experts = 256});
  writer.U32("deepseek2.attention.q_lora_rank", 1536)
      .U32("deepseek2.expert_gating_func", 2)
      .F32("deepseek2.expert_weights_scale", 2.5f)
      .Bool("deepseek2.expert_weights_norm", true)
      .U32("deepseek2.expert_group_count", 16)
      .U32("deepseek2.expert_group_used_count", 2);
  const auto config = ConfigOf(writer);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ((*config)["architectures"], nlohmann::json({"DeepseekV3ForCausalLM"}));
  EXPECT_EQ((*config)["q_lora_rank"], 1536);
  EXPECT_EQ((*config)["routed_scaling_factor"], 2.5);
  EXPECT_EQ((*config)["norm_topk_prob"], true);
  EXPECT_EQ((*config)["n_group"], 16);
  EXPECT_EQ((*config)["topk_group"], 2);
  EXPECT_FALSE(config->contains("topk_method"));
}

TEST(GgufDeepseekTest, GroupsOfFilesWithoutThem) {
  const auto v3 =
      ConfigOf(OldFile({.layers = 61, .experts = 256}).U32("deepseek2.expert_gating_func", 2));
  ASSERT_TRUE(v3.ok()) << v3.status();
  EXPECT_EQ((*v3)["n_group"], 8);
  EXPECT_EQ((*v3)["topk_group"], 4);
  const auto v2 = ConfigOf(OldFile({.layers = 60, .experts = 160}));
  ASSERT_TRUE(v2.ok()) << v2.status();
  EXPECT_EQ((*v2)["n_group"], 8);
  EXPECT_EQ((*v2)["topk_group"], 3);
  EXPECT_EQ((*v2)["topk_method"], "group_limited_greedy");
}

TEST(GgufDeepseekTest, ScalesOfYarn) {
  GgufWriter writer = NewFile();
  writer.Text("deepseek2.rope.scaling.type", "yarn")
      .F32("deepseek2.rope.scaling.factor", 40)
      .U32("deepseek2.rope.scaling.original_context_length", 4096);
  EXPECT_THAT(ErrorOf(writer),
              HasSubstr("\"deepseek2.rope.scaling.yarn_log_multiplier\" is missing"));
  writer.F32("deepseek2.rope.scaling.yarn_log_multiplier", 0.0707f);
  const auto config = ConfigOf(writer);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_DOUBLE_EQ((*config)["rope_scaling"]["mscale"], 0.707);
  EXPECT_DOUBLE_EQ((*config)["rope_scaling"]["mscale_all_dim"], 0.707);
}

TEST(GgufDeepseekTest, RefusesByKey) {
  EXPECT_THAT(ErrorOf(OldFile().U32("deepseek2.attention.key_length_mla", 192)),
              HasSubstr("\"deepseek2.attention.key_length\" is 192, allowed is a latent's rank and "
                        "rotated key (576)"));
  EXPECT_THAT(
      ErrorOf(Experts({}).U32("deepseek2.attention.key_length", 64)),
      HasSubstr("\"deepseek2.attention.key_length\" is 64, allowed is more than the rotated "
                "dimensions (64)"));
  EXPECT_THAT(
      ErrorOf(NewFile().Bool("deepseek2.expert_weights_norm", true)),
      HasSubstr("\"deepseek2.expert_weights_norm\" is true, allowed is false with softmax"));
  EXPECT_THAT(ErrorOf(NewFile().U32("deepseek2.expert_gating_func", 3)),
              HasSubstr("\"deepseek2.expert_gating_func\" is 3"));
  EXPECT_THAT(ErrorOf(NewFile().U32("deepseek2.nextn_predict_layers", 1)),
              HasSubstr("\"deepseek2.nextn_predict_layers\" is none that deepseek2 models"));
  EXPECT_THAT(ErrorOf(NewFile().F32("deepseek2.attention.temperature_scale", 0.1f)),
              HasSubstr("\"deepseek2.attention.temperature_scale\" is none that"));
}

}  // namespace
}  // namespace penstock
