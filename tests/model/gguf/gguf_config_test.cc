#include "model/gguf/gguf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/model/gguf/config_of.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(GgufConfigTest, Llama) {
  GgufWriter writer = WithTable(LlamaMetadata());
  writer.U32("tokenizer.ggml.bos_token_id", 1).U32("tokenizer.ggml.eos_token_id", 2);
  const auto config = ConfigOf(writer);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ((*config)["architectures"], nlohmann::json({"LlamaForCausalLM"}));
  EXPECT_EQ((*config)["num_hidden_layers"], 2);
  EXPECT_EQ((*config)["hidden_size"], 32);
  EXPECT_EQ((*config)["intermediate_size"], 48);
  EXPECT_EQ((*config)["num_attention_heads"], 4);
  EXPECT_EQ((*config)["num_key_value_heads"], 2);
  EXPECT_EQ((*config)["head_dim"], 8);
  EXPECT_EQ((*config)["vocab_size"], 100);
  EXPECT_EQ((*config)["max_position_embeddings"], 64);
  EXPECT_EQ((*config)["rms_norm_eps"].get<float>(), 1e-5f);
  EXPECT_EQ((*config)["rope_theta"], 500000.0);
  EXPECT_EQ((*config)["tie_word_embeddings"], true);
  EXPECT_EQ((*config)["attention_bias"], false);
  EXPECT_EQ((*config)["mlp_bias"], false);
  EXPECT_EQ((*config)["bos_token_id"], 1);
  EXPECT_EQ((*config)["eos_token_id"], nlohmann::json({2}));
  EXPECT_FALSE(config->contains("rope_scaling"));
}

TEST(GgufConfigTest, TensorsTellBiasesAndTheHead) {
  GgufWriter writer = WithTable(LlamaMetadata());
  writer.Tensor("output.weight", "Q6_K", {100, 256})
      .Tensor("blk.0.attn_q.bias", "F32", {32})
      .Tensor("blk.0.ffn_gate.bias", "F32", {48});
  const auto config = ConfigOf(writer);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ((*config)["tie_word_embeddings"], false);
  EXPECT_EQ((*config)["attention_bias"], true);
  EXPECT_EQ((*config)["mlp_bias"], true);
}

TEST(GgufConfigTest, Qwen) {
  GgufWriter qwen2 = WithTable(LlamaMetadata("qwen2"));
  qwen2.Tensor("blk.0.attn_q.bias", "F32", {32});
  const auto second = ConfigOf(qwen2);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ((*second)["architectures"], nlohmann::json({"Qwen2ForCausalLM"}));
  EXPECT_FALSE(second->contains("attention_bias"));  // it always has it
  GgufWriter qwen3 = WithTable(LlamaMetadata("qwen3"));
  qwen3.U32("qwen3.attention.key_length", 16).U32("qwen3.attention.value_length", 16);
  const auto third = ConfigOf(qwen3);
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_EQ((*third)["architectures"], nlohmann::json({"Qwen3ForCausalLM"}));
  EXPECT_EQ((*third)["head_dim"], 16);
  EXPECT_EQ((*third)["attention_bias"], false);
}

TEST(GgufConfigTest, GptOss) {
  GgufWriter writer = WithTable(LlamaMetadata("gpt-oss"));
  writer.U32("gpt-oss.attention.sliding_window", 8)
      .U32("gpt-oss.expert_count", 4)
      .U32("gpt-oss.expert_used_count", 2)
      .U32("gpt-oss.expert_feed_forward_length", 40)
      .Text("gpt-oss.rope.scaling.type", "yarn")
      .F32("gpt-oss.rope.scaling.factor", 4)
      .U32("gpt-oss.rope.scaling.original_context_length", 32);
  writer.Tensor("blk.0.attn_q.bias", "F32", {32});
  const auto config = ConfigOf(writer);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ((*config)["architectures"], nlohmann::json({"GptOssForCausalLM"}));
  EXPECT_EQ((*config)["sliding_window"], 8);
  EXPECT_EQ((*config)["num_local_experts"], 4);
  EXPECT_EQ((*config)["num_experts_per_tok"], 2);
  EXPECT_EQ((*config)["intermediate_size"], 40);
  EXPECT_EQ((*config)["attention_bias"], true);
  EXPECT_EQ((*config)["rope_scaling"]["truncate"], false);
  EXPECT_THAT(ErrorOf(WithTable(LlamaMetadata("gpt-oss"))),
              HasSubstr("\"gpt-oss.attention.sliding_window\""));
}

TEST(GgufConfigTest, QwenWithExperts) {
  GgufWriter writer = WithTable(LlamaMetadata("qwen3moe"));
  EXPECT_THAT(ErrorOf(writer), HasSubstr("\"qwen3moe.expert_count\" is missing"));
  writer.U32("qwen3moe.expert_count", 8)
      .U32("qwen3moe.expert_used_count", 2)
      .U32("qwen3moe.expert_feed_forward_length", 24);
  const auto config = ConfigOf(writer);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ((*config)["architectures"], nlohmann::json({"Qwen3MoeForCausalLM"}));
  EXPECT_EQ((*config)["num_experts"], 8);
  EXPECT_EQ((*config)["num_experts_per_tok"], 2);
  EXPECT_EQ((*config)["moe_intermediate_size"], 24);
  EXPECT_EQ((*config)["norm_topk_prob"], true);
  EXPECT_EQ((*config)["attention_bias"], false);
}

TEST(GgufConfigTest, EqualValuesOfLayersAreOne) {
  GgufWriter writer;
  writer.Text("general.architecture", "llama")
      .U32("llama.block_count", 2)
      .U32("llama.context_length", 64)
      .U32("llama.embedding_length", 32)
      .I32s("llama.feed_forward_length", {48, 48})
      .U32("llama.attention.head_count", 4)
      .Numbers("llama.attention.head_count_kv", GgufType::kU32, std::vector<uint32_t>{1, 1})
      .F32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  const auto config = ConfigOf(WithTable(writer));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ((*config)["num_key_value_heads"], 1);
  EXPECT_EQ((*config)["intermediate_size"], 48);
  EXPECT_EQ((*config)["rope_theta"], 10000.0);
}

TEST(GgufConfigTest, LinearAndYarnRope) {
  GgufWriter linear = WithTable(LlamaMetadata());
  linear.Text("llama.rope.scaling.type", "linear").F32("llama.rope.scaling.factor", 4);
  EXPECT_EQ((*ConfigOf(linear))["rope_scaling"],
            nlohmann::json({{"rope_type", "linear"}, {"factor", 4.0}}));
  GgufWriter old = WithTable(LlamaMetadata());
  old.F32("llama.rope.scale_linear", 2);
  EXPECT_EQ((*ConfigOf(old))["rope_scaling"],
            nlohmann::json({{"rope_type", "linear"}, {"factor", 2.0}}));
  GgufWriter yarn = WithTable(LlamaMetadata("qwen2"));
  yarn.Text("qwen2.rope.scaling.type", "yarn")
      .F32("qwen2.rope.scaling.factor", 4)
      .U32("qwen2.rope.scaling.original_context_length", 32)
      .F32("qwen2.rope.scaling.yarn_beta_fast", 16);
  EXPECT_EQ((*ConfigOf(yarn))["rope_scaling"],
            nlohmann::json({{"rope_type", "yarn"},
                            {"factor", 4.0},
                            {"original_max_position_embeddings", 32},
                            {"beta_fast", 16.0},
                            {"beta_slow", 1.0}}));
  GgufWriter none = WithTable(LlamaMetadata());
  none.Text("llama.rope.scaling.type", "none");
  EXPECT_FALSE(ConfigOf(none)->contains("rope_scaling"));
}

// The divisors as llama.cpp's converter computes them, in single precision.
std::string Llama3Divisors(float factor, int head_dim, float theta) {
  std::vector<float> divisors;
  for (int i = 0; i < head_dim; i += 2) {
    const float frequency =
        1.0f / std::pow(theta, static_cast<float>(i) / static_cast<float>(head_dim));
    const float wavelength = 2 * 3.14159265f / frequency;
    if (wavelength < 2048) {
      divisors.push_back(1);
    } else if (wavelength > 8192) {
      divisors.push_back(factor);
    } else {
      const float smooth = (8192 / wavelength - 1) / 3;
      divisors.push_back(1 / ((1 - smooth) / factor + smooth));
    }
  }
  return {reinterpret_cast<const char*>(divisors.data()), divisors.size() * sizeof(float)};
}

GgufWriter WithDivisors(const std::string& divisors, uint32_t type = 0) {
  GgufWriter writer;
  writer.Text("general.architecture", "llama")
      .U32("llama.block_count", 2)
      .U32("llama.context_length", 131072)
      .U32("llama.embedding_length", 256)
      .U32("llama.feed_forward_length", 48)
      .U32("llama.attention.head_count", 2)
      .U32("llama.rope.dimension_count", 128)
      .F32("llama.attention.layer_norm_rms_epsilon", 1e-5f)
      .F32("llama.rope.freq_base", 500000)
      .Tensor("token_embd.weight", "Q8_0", {100, 32})
      .TensorData("rope_freqs.weight", type, {divisors.size() / sizeof(float)}, divisors);
  return writer;
}

TEST(GgufConfigTest, RecognisesLlama31AndLlama32) {
  for (const float factor : {8.0f, 32.0f}) {
    const auto config = ConfigOf(WithDivisors(Llama3Divisors(factor, 128, 500000)));
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ((*config)["rope_scaling"],
              nlohmann::json({{"rope_type", "llama3"},
                              {"factor", factor},
                              {"low_freq_factor", 1.0},
                              {"high_freq_factor", 4.0},
                              {"original_max_position_embeddings", 8192}}));
  }
  const auto plain = ConfigOf(WithDivisors(Llama3Divisors(1, 128, 500000)));
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_FALSE(plain->contains("rope_scaling"));
}

TEST(GgufConfigTest, RefusesOtherDivisors) {
  std::string divisors = Llama3Divisors(8, 128, 500000);
  EXPECT_THAT(ErrorOf(WithDivisors(Llama3Divisors(16, 128, 500000))),
              HasSubstr("tensor rope_freqs.weight has other divisors"));
  float changed;
  std::memcpy(&changed, divisors.data() + 4 * 30, sizeof(changed));
  changed *= 1.0001f;
  std::memcpy(divisors.data() + 4 * 30, &changed, sizeof(changed));
  EXPECT_THAT(ErrorOf(WithDivisors(divisors)), HasSubstr("8 or 32"));
  const float not_a_number = std::nanf("");
  std::memcpy(divisors.data(), &not_a_number, sizeof(not_a_number));
  EXPECT_THAT(ErrorOf(WithDivisors(divisors)), HasSubstr("other divisors"));
  EXPECT_THAT(ErrorOf(WithDivisors(divisors.substr(0, 128))),
              HasSubstr("F32 of shape [32], allowed is F32 of shape [64]"));
  GgufWriter both = WithDivisors(Llama3Divisors(8, 128, 500000));
  both.Text("llama.rope.scaling.type", "linear").F32("llama.rope.scaling.factor", 4);
  EXPECT_THAT(ErrorOf(both), HasSubstr("both extend the context"));
}

TEST(GgufConfigTest, EndTokensByIdAndBySpelling) {
  GgufWriter writer;
  writer.Text("general.architecture", "llama")
      .Texts("tokenizer.ggml.tokens", {"a", "<|eot_id|>", "<|im_end|>", "</s>", "<|eom_id|>",
                                       "<|end_of_text|>", "<end_of_turn>"})
      .I32s("tokenizer.ggml.token_type", {1, 3, 1, 3, 3, 3, 3})
      .U32("tokenizer.ggml.eos_token_id", 3)
      .U32("tokenizer.ggml.eot_token_id", 0);
  const std::string bytes = writer.Bytes();
  // <|im_end|> is an ordinary token here, which texts can spell.
  EXPECT_THAT(*GgufEndTokens(*ParseWritten(bytes)), ElementsAre(0, 1, 3, 4, 5, 6));
}

TEST(GgufConfigTest, Architecture) {
  const std::string bytes = LlamaMetadata().Bytes();
  EXPECT_EQ(*GgufArchitecture(*ParseWritten(bytes)), "llama");
}

TEST(GgufConfigTest, EndOfAPartIsAnEndInPhi3Only) {
  for (const bool phi3 : {true, false}) {
    GgufWriter writer;
    writer.Text("general.architecture", phi3 ? "phi3" : "gpt-oss")
        .Texts("tokenizer.ggml.tokens", {"a", "<|end|>"})
        .I32s("tokenizer.ggml.token_type", {1, 3});
    const std::string bytes = writer.Bytes();
    EXPECT_EQ(GgufEndTokens(*ParseWritten(bytes))->size(), phi3 ? 1 : 0);
  }
}

// As some files of Gemma have them.
TEST(GgufConfigTest, OrdinaryMarkersOfTurnsEndAnswers) {
  GgufWriter writer;
  writer.Texts("tokenizer.ggml.tokens", {"a", "<start_of_turn>", "<end_of_turn>"})
      .I32s("tokenizer.ggml.token_type", {1, 1, 1});
  const std::string bytes = writer.Bytes();
  EXPECT_THAT(*GgufEndTokens(*ParseWritten(bytes)), ElementsAre(2));
}

struct RefusedConfig {
  const char* name;
  GgufWriter writer;
  const char* error;
};

class GgufConfigRefusalTest : public testing::TestWithParam<RefusedConfig> {};

TEST_P(GgufConfigRefusalTest, NamesTheKey) {
  EXPECT_THAT(ErrorOf(GetParam().writer), HasSubstr(GetParam().error));
}

GgufWriter Changed(auto change) {
  GgufWriter writer = WithTable(LlamaMetadata());
  change(writer);
  return writer;
}

INSTANTIATE_TEST_SUITE_P(
    Configs, GgufConfigRefusalTest,
    testing::Values(
        RefusedConfig{"no_architecture", GgufWriter(),
                      "m.gguf: key \"general.architecture\" is missing"},
        RefusedConfig{
            "architecture", LlamaMetadata("gemma"),
            "\"general.architecture\" is \"gemma\", allowed is one of chatglm, deepseek2, falcon, "
            "gemma2, gemma3, glm4, glm4moe, gpt-oss, gpt2, gptneox, granite, llama, olmo2, phi3, "
            "qwen2, qwen2moe, qwen3, qwen3moe, starcoder2"},
        RefusedConfig{"adapter", Changed([](auto& w) { w.Text("general.type", "adapter"); }),
                      "\"general.type\" is \"adapter\", allowed is model"},
        RefusedConfig{"experts", WithTable(LlamaMetadata("qwen2")).U32("qwen2.expert_count", 8),
                      "\"qwen2.expert_count\" is 8, allowed is an integer from 0 to 0"},
        RefusedConfig{"used_experts", Changed([](auto& w) { w.U32("llama.expert_used_count", 2); }),
                      "\"llama.expert_used_count\" is 2, allowed is an integer from 0 to 0"},
        RefusedConfig{"size_of_experts", Changed([](auto& w) {
                        w.U32("llama.expert_count", 8)
                            .U32("llama.expert_used_count", 2)
                            .U32("llama.expert_feed_forward_length", 40);
                      }),
                      "\"llama.expert_feed_forward_length\" is 40, allowed is absent, or "
                      "feed_forward_length (48)"},
        RefusedConfig{"unknown_key", Changed([](auto& w) { w.F32("llama.logit_scale", 2); }),
                      "\"llama.logit_scale\" is none that llama models are known to have"},
        RefusedConfig{"missing", WithTable(GgufWriter().Text("general.architecture", "llama")),
                      "\"llama.block_count\" is missing"},
        RefusedConfig{"heads_text",
                      Changed([](auto& w) { w.Text("llama.attention.key_length", "8"); }),
                      "\"llama.attention.key_length\" is \"8\", allowed is an integer"},
        RefusedConfig{"value_length",
                      Changed([](auto& w) { w.U32("llama.attention.value_length", 16); }),
                      "\"llama.attention.value_length\" is 16, allowed is the size of a head (8)"},
        RefusedConfig{"partial_rope",
                      Changed([](auto& w) { w.U32("llama.rope.dimension_count", 4); }),
                      "\"llama.rope.dimension_count\" is 4, allowed is the size of a head (8)"},
        RefusedConfig{"window",
                      Changed([](auto& w) { w.U32("llama.attention.sliding_window", 32); }),
                      "\"llama.attention.sliding_window\" is 32"},
        RefusedConfig{"longrope",
                      Changed([](auto& w) { w.Text("llama.rope.scaling.type", "longrope"); }),
                      "\"llama.rope.scaling.type\" is \"longrope\", allowed is none, linear or"},
        RefusedConfig{"factor_of_none",
                      Changed([](auto& w) { w.F32("llama.rope.scaling.factor", 2); }),
                      "\"llama.rope.scaling.factor\" is 2, allowed is 1"},
        RefusedConfig{"yarn_attention", Changed([](auto& w) {
                        w.Text("llama.rope.scaling.type", "yarn")
                            .F32("llama.rope.scaling.factor", 2)
                            .F32("llama.rope.scaling.attn_factor", 1.5f);
                      }),
                      "\"llama.rope.scaling.attn_factor\" is 1.5, allowed is 1"},
        RefusedConfig{"parallel",
                      Changed([](auto& w) { w.Bool("llama.use_parallel_residual", true); }),
                      "\"llama.use_parallel_residual\" is true, allowed is false"},
        RefusedConfig{"quantisation",
                      Changed([](auto& w) { w.U32("general.quantization_version", 1); }),
                      "\"general.quantization_version\" is 1"},
        RefusedConfig{"no_table", LlamaMetadata(), "tensor token_embd.weight is missing"},
        RefusedConfig{"flat_table", LlamaMetadata().Tensor("token_embd.weight", "F32", {64}),
                      "token_embd.weight has shape [64], allowed are two extents"},
        RefusedConfig{"epsilon_not_a_number",
                      WithTable(GgufWriter()
                                    .Text("general.architecture", "llama")
                                    .F32("llama.attention.layer_norm_rms_epsilon", NAN)
                                    .U32("llama.block_count", 2)
                                    .U32("llama.embedding_length", 32)
                                    .U32("llama.feed_forward_length", 48)
                                    .U32("llama.attention.head_count", 4)
                                    .U32("llama.context_length", 64)),
                      "\"llama.attention.layer_norm_rms_epsilon\" is nan"},
        RefusedConfig{"unequal_layers",
                      WithTable(GgufWriter()
                                    .Text("general.architecture", "llama")
                                    .U32("llama.block_count", 2)
                                    .U32("llama.embedding_length", 32)
                                    .I32s("llama.feed_forward_length", {48, 64})),
                      "\"llama.feed_forward_length\" has other values from element 1 on"}),
    [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace penstock
