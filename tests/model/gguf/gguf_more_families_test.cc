#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/model/gguf/config_of.h"

// The fields that only OLMo 2, GLM and the families with layer norms have.
namespace penstock {
namespace {

using ::testing::HasSubstr;

// The sizes of SmallMetadata, with layer norms.
GgufWriter LayerNormMetadata(const std::string& a) {
  GgufWriter writer = SmallMetadata(a);
  writer.F32(a + ".attention.layer_norm_epsilon", 0x1p-16f);
  return WithTable(writer);
}

TEST(GgufMoreFamiliesTest, EveryLayerNormHasAnEpsilon) {
  for (const std::string a : {"falcon", "gpt2", "gptneox", "starcoder2"}) {
    GgufWriter writer = SmallMetadata(a);
    writer.U32(a + ".rope.dimension_count", 8).F32(a + ".attention.layer_norm_rms_epsilon", 1e-5f);
    EXPECT_THAT(ErrorOf(WithTable(writer)),
                HasSubstr("\"" + a + ".attention.layer_norm_epsilon\" is missing"));
  }
  EXPECT_THAT(ErrorOf(LayerNormMetadata("olmo2")),
              HasSubstr("\"olmo2.attention.layer_norm_epsilon\" is none that olmo2 models"));
}

TEST(GgufMoreFamiliesTest, Gpt2) {
  const auto config = ConfigOf(LayerNormMetadata("gpt2"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ((*config)["architectures"], nlohmann::json({"GPT2LMHeadModel"}));
  EXPECT_EQ((*config)["n_layer"], 2);
  EXPECT_EQ((*config)["n_embd"], 32);
  EXPECT_EQ((*config)["n_inner"], 48);
  EXPECT_EQ((*config)["n_head"], 4);
  EXPECT_EQ((*config)["n_positions"], 64);
  EXPECT_EQ((*config)["layer_norm_epsilon"], 0x1p-16);
  EXPECT_EQ((*config)["activation_function"], "gelu_new");
  EXPECT_FALSE(config->contains("hidden_size"));
}

TEST(GgufMoreFamiliesTest, GptNeox) {
  GgufWriter writer = LayerNormMetadata("gptneox");
  EXPECT_THAT(ErrorOf(writer), HasSubstr("\"gptneox.rope.dimension_count\" is missing"));
  writer.U32("gptneox.rope.dimension_count", 2);
  EXPECT_THAT(ErrorOf(writer), HasSubstr("\"gptneox.use_parallel_residual\" is missing"));
  writer.Bool("gptneox.use_parallel_residual", true).Tensor("blk.0.attn_qkv.bias", "F32", {96});
  const auto config = ConfigOf(writer);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ((*config)["architectures"], nlohmann::json({"GPTNeoXForCausalLM"}));
  EXPECT_EQ((*config)["use_parallel_residual"], true);
  EXPECT_EQ((*config)["layer_norm_eps"], 0x1p-16);
  EXPECT_EQ((*config)["rotary_pct"], 0.25);
  EXPECT_EQ((*config)["rotary_emb_base"], 10000.0);
  EXPECT_EQ((*config)["num_key_value_heads"], 4);
  EXPECT_EQ((*config)["attention_bias"], true);
  EXPECT_EQ((*config)["hidden_act"], "gelu");
}

// The file does not say it; its shape does.
TEST(GgufMoreFamiliesTest, GptNeox20BHasTheApproximateGelu) {
  GgufWriter writer;
  writer.Text("general.architecture", "gptneox")
      .U32("gptneox.block_count", 44)
      .U32("gptneox.context_length", 2048)
      .U32("gptneox.embedding_length", 6144)
      .U32("gptneox.feed_forward_length", 24576)
      .U32("gptneox.attention.head_count", 64)
      .U32("gptneox.rope.dimension_count", 24)
      .Bool("gptneox.use_parallel_residual", true)
      .F32("gptneox.attention.layer_norm_epsilon", 1e-5f);
  const auto config = ConfigOf(WithTable(writer));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ((*config)["hidden_act"], "gelu_fast");
}

TEST(GgufMoreFamiliesTest, OnlyGptNeoxIsParallelByAField) {
  EXPECT_THAT(ErrorOf(LayerNormMetadata("gpt2").Bool("gpt2.use_parallel_residual", true)),
              HasSubstr("\"gpt2.use_parallel_residual\" is true, allowed is false"));
}

TEST(GgufMoreFamiliesTest, Falcon) {
  GgufWriter small = LayerNormMetadata("falcon");
  small.U32("falcon.attention.head_count_kv", 1);
  auto config = ConfigOf(small);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ((*config)["architectures"], nlohmann::json({"FalconForCausalLM"}));
  EXPECT_EQ((*config)["new_decoder_architecture"], false);
  EXPECT_EQ((*config)["num_ln_in_parallel_attn"], 1);
  EXPECT_EQ((*config)["ffn_hidden_size"], 48);
  EXPECT_EQ((*config)["layer_norm_epsilon"], 0x1p-16);
  EXPECT_EQ((*config)["activation"], "gelu");
  EXPECT_EQ((*config)["bias"], false);

  GgufWriter grouped = LayerNormMetadata("falcon");
  grouped.U32("falcon.attention.head_count_kv", 2);
  GgufWriter one_norm = grouped;
  EXPECT_THAT(ErrorOf(one_norm), HasSubstr("\"falcon.rope.freq_base\" is missing"));
  config = ConfigOf(one_norm.F32("falcon.rope.freq_base", 500042));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ((*config)["num_ln_in_parallel_attn"], 1);
  EXPECT_EQ((*config)["rope_theta"], 500042.0);
  config = ConfigOf(grouped.Tensor("blk.0.attn_norm_2.weight", "F32", {32}));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ((*config)["new_decoder_architecture"], true);
  EXPECT_EQ((*config)["num_kv_heads"], 2);
  EXPECT_EQ((*config)["num_ln_in_parallel_attn"], 2);
}

TEST(GgufMoreFamiliesTest, Starcoder2) {
  GgufWriter writer = LayerNormMetadata("starcoder2");
  auto config = ConfigOf(writer);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ((*config)["architectures"], nlohmann::json({"Starcoder2ForCausalLM"}));
  EXPECT_EQ((*config)["norm_epsilon"], 0x1p-16);
  EXPECT_EQ((*config)["sliding_window"], 4096);
  EXPECT_EQ((*config)["use_bias"], false);
  writer.U32("starcoder2.attention.sliding_window", 16).Tensor("blk.0.attn_q.bias", "F32", {32});
  config = ConfigOf(writer);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ((*config)["sliding_window"], 16);
  EXPECT_EQ((*config)["use_bias"], true);
}

// OLMo 3's files name the same architecture.
TEST(GgufMoreFamiliesTest, Olmo2HasNoWindow) {
  GgufWriter writer = WithTable(LlamaMetadata("olmo2"));
  const auto config = ConfigOf(writer);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ((*config)["architectures"], nlohmann::json({"Olmo2ForCausalLM"}));
  EXPECT_THAT(ErrorOf(writer.U32("olmo2.attention.sliding_window", 16)),
              HasSubstr("\"olmo2.attention.sliding_window\" is 16, allowed is absent"));
}

TEST(GgufMoreFamiliesTest, Glm) {
  for (const auto& [architecture, name] :
       {std::pair{"chatglm", "GlmForCausalLM"}, {"glm4", "Glm4ForCausalLM"}}) {
    const std::string a(architecture);
    GgufWriter writer = WithTable(LlamaMetadata(a));
    EXPECT_THAT(ErrorOf(writer), HasSubstr("\"" + a + ".rope.dimension_count\" is missing"));
    writer.U32(a + ".rope.dimension_count", 4)
        .U32(a + ".attention.key_length", 16)
        .U32(a + ".attention.value_length", 16)
        .Tensor("blk.0.attn_qkv.bias", "F32", {128});
    const auto config = ConfigOf(writer);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ((*config)["architectures"], nlohmann::json({name}));
    EXPECT_EQ((*config)["head_dim"], 16);
    EXPECT_EQ((*config)["partial_rotary_factor"], 0.25);
    EXPECT_EQ((*config)["attention_bias"], true);
  }
  EXPECT_THAT(
      ErrorOf(WithTable(LlamaMetadata("glm4"))
                  .U32("glm4.rope.dimension_count", 4)
                  .U32("glm4.attention.value_length", 16)),
      HasSubstr("\"glm4.attention.value_length\" is 16, allowed is the size of a head (8)"));
}

GgufWriter Glm4MoeMetadata() {
  GgufWriter writer = WithTable(LlamaMetadata("glm4moe"));
  writer.U32("glm4moe.rope.dimension_count", 4)
      .U32("glm4moe.expert_count", 8)
      .U32("glm4moe.expert_used_count", 3)
      .U32("glm4moe.expert_feed_forward_length", 24)
      .U32("glm4moe.expert_shared_count", 1)
      .U32("glm4moe.leading_dense_block_count", 1)
      .F32("glm4moe.expert_weights_scale", 1.5f)
      .Bool("glm4moe.expert_weights_norm", true);
  return writer;
}

TEST(GgufMoreFamiliesTest, Glm4Moe) {
  GgufWriter writer = Glm4MoeMetadata();
  EXPECT_THAT(ErrorOf(writer), HasSubstr("\"glm4moe.expert_gating_func\" is missing"));
  writer.U32("glm4moe.expert_gating_func", 2);
  auto config = ConfigOf(writer);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ((*config)["architectures"], nlohmann::json({"Glm4MoeForCausalLM"}));
  EXPECT_EQ((*config)["num_hidden_layers"], 2);
  EXPECT_EQ((*config)["num_nextn_predict_layers"], 0);
  EXPECT_EQ((*config)["n_routed_experts"], 8);
  EXPECT_EQ((*config)["num_experts_per_tok"], 3);
  EXPECT_EQ((*config)["moe_intermediate_size"], 24);
  EXPECT_EQ((*config)["n_shared_experts"], 1);
  EXPECT_EQ((*config)["first_k_dense_replace"], 1);
  EXPECT_EQ((*config)["routed_scaling_factor"], 1.5);
  EXPECT_EQ((*config)["norm_topk_prob"], true);
  EXPECT_EQ((*config)["n_group"], 1);
  EXPECT_EQ((*config)["use_qk_norm"], false);
  writer.U32("glm4moe.nextn_predict_layers", 1).Tensor("blk.0.attn_q_norm.weight", "F32", {8});
  config = ConfigOf(writer);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ((*config)["num_hidden_layers"], 1);
  EXPECT_EQ((*config)["num_nextn_predict_layers"], 1);
  EXPECT_EQ((*config)["use_qk_norm"], true);
}

TEST(GgufMoreFamiliesTest, Glm4MoeRefusals) {
  EXPECT_THAT(ErrorOf(Glm4MoeMetadata().U32("glm4moe.expert_gating_func", 1)),
              HasSubstr("\"glm4moe.expert_gating_func\" is 1, allowed is an integer from 2 to 2"));
  EXPECT_THAT(
      ErrorOf(Glm4MoeMetadata()
                  .U32("glm4moe.expert_gating_func", 2)
                  .U32("glm4moe.nextn_predict_layers", 2)),
      HasSubstr("\"glm4moe.nextn_predict_layers\" is 2, allowed is an integer from 0 to 1"));
}

TEST(GgufMoreFamiliesTest, GlmStopsAtTheNextTurn) {
  for (const auto& [architecture, count] :
       {std::pair{"chatglm", 2}, {"glm4", 2}, {"glm4moe", 2}, {"llama", 0}}) {
    GgufWriter writer;
    writer.Text("general.architecture", architecture)
        .Texts("tokenizer.ggml.tokens", {"a", "<|user|>", "<|observation|>", "<|system|>"})
        .I32s("tokenizer.ggml.token_type", {1, 3, 3, 3});
    const std::string bytes = writer.Bytes();
    const auto file = ParseWritten(bytes);
    ASSERT_TRUE(file.ok()) << file.status();
    const auto ends = GgufEndTokens(*file);
    ASSERT_TRUE(ends.ok()) << ends.status();
    EXPECT_EQ(ends->size(), count) << architecture;
  }
}

}  // namespace
}  // namespace penstock
