#include "model/checkpoint/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "lab/fake/temp_folder.h"
#include "tests/model/checkpoint/safetensors_writer.h"

namespace penstock {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

absl::StatusOr<ModelConfig> Parse(const Json& config, const Json& generation = nullptr) {
  return ParseModelConfig(config.dump(), generation.is_null() ? "" : generation.dump());
}

Json Llama() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"hidden_size", 2048},
          {"intermediate_size", 5632},
          {"num_hidden_layers", 22},
          {"num_attention_heads", 32},
          {"num_key_value_heads", 4},
          {"hidden_act", "silu"},
          {"max_position_embeddings", 2048},
          {"rms_norm_eps", 1e-5},
          {"rope_scaling", nullptr},
          {"tie_word_embeddings", false},
          {"torch_dtype", "bfloat16"},
          {"bos_token_id", 1},
          {"eos_token_id", 2},
          {"vocab_size", 32000}};
}

Json With(Json config, const Json& changes) {
  config.update(changes);
  return config;
}

Json Qwen2(const Json& changes = Json::object()) {
  return With(With(Llama(), {{"architectures", {"Qwen2ForCausalLM"}},
                             {"rope_theta", 1e6},
                             {"sliding_window", 512},
                             {"max_window_layers", 20}}),
              changes);
}

TEST(ModelConfigTest, Llama2) {
  const auto config = Parse(Llama());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, "LlamaForCausalLM");
  EXPECT_EQ(config->layers, 22);
  EXPECT_EQ(config->hidden, 2048);
  EXPECT_EQ(config->intermediate, 5632);
  EXPECT_EQ(config->heads, 32);
  EXPECT_EQ(config->kv_heads, 4);
  EXPECT_EQ(config->head_dim, 64);
  EXPECT_EQ(config->vocab, 32000);
  EXPECT_EQ(config->max_position, 2048);
  EXPECT_FLOAT_EQ(config->norm_epsilon, 1e-5f);
  EXPECT_EQ(config->rope.theta, 10000.0f);
  EXPECT_EQ(config->rope.scaling, RopeScaling::kNone);
  EXPECT_FALSE(config->tied_embeddings || config->qkv_bias || config->output_bias ||
               config->mlp_bias || config->qk_norm != QkNorm::kNone);
  EXPECT_EQ(config->sliding_window, std::vector<int32_t>(22, 0));
  EXPECT_THAT(config->eos_token_ids, ElementsAre(2));
  EXPECT_EQ(config->bos_token_id, 1u);
}

TEST(ModelConfigTest, EarlyLlamaHasAsManyKvHeadsAsHeads) {
  Json config = Llama();
  config.erase("num_key_value_heads");
  EXPECT_EQ(Parse(config)->kv_heads, 32);
  config["num_key_value_heads"] = nullptr;
  EXPECT_EQ(Parse(config)->kv_heads, 32);
}

TEST(ModelConfigTest, Llama31WithRopeScalingAndListOfEos) {
  const auto config = Parse(With(Llama(), {{"rope_theta", 500000.0},
                                           {"max_position_embeddings", 131072},
                                           {"attention_bias", true},
                                           {"mlp_bias", true},
                                           {"vocab_size", 128256},
                                           {"rope_scaling",
                                            {{"factor", 8.0},
                                             {"low_freq_factor", 1.0},
                                             {"high_freq_factor", 4.0},
                                             {"original_max_position_embeddings", 8192},
                                             {"rope_type", "llama3"}}}}),
                            {{"eos_token_id", {128001, 128008, 128009}}, {"temperature", 0.6}});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rope.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(config->rope.theta, 500000.0f);
  EXPECT_EQ(config->rope.factor, 8.0f);
  EXPECT_EQ(config->rope.low_freq_factor, 1.0f);
  EXPECT_EQ(config->rope.high_freq_factor, 4.0f);
  EXPECT_EQ(config->rope.original_max_position, 8192);
  EXPECT_TRUE(config->qkv_bias && config->output_bias && config->mlp_bias);
  EXPECT_THAT(config->eos_token_ids, ElementsAre(128001, 128008, 128009));
}

// The same model as transformers 5 writes it.
TEST(ModelConfigTest, RopeParametersAndDtypeOfNewerFiles) {
  Json config = Llama();
  config.erase("torch_dtype");
  config.erase("rope_scaling");
  config["dtype"] = "float16";
  config["rope_parameters"] = {{"rope_theta", 1e6}, {"rope_type", "default"}};
  EXPECT_EQ(Parse(config)->rope.theta, 1e6f);
  config["rope_parameters"] = {{"rope_theta", 1e6}, {"type", "linear"}, {"factor", 4}};
  EXPECT_EQ(Parse(config)->rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(Parse(config)->rope.factor, 4.0f);
  config["rope_scaling"] = config["rope_parameters"];
  EXPECT_TRUE(Parse(config).ok());
  config["rope_scaling"]["factor"] = 8;
  EXPECT_THAT(Message(Parse(config).status()), HasSubstr("the same as rope_parameters"));
}

TEST(ModelConfigTest, YarnWorksOutItsAttentionFactorAndReach) {
  const Json yarn = {
      {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 1024}};
  const auto config = Parse(With(Llama(), {{"rope_scaling", yarn}}));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rope.scaling, RopeScaling::kYarn);
  EXPECT_FLOAT_EQ(config->rope.attention_factor, 0.1f * std::log(4.0f) + 1);
  EXPECT_EQ(config->rope.beta_fast, 32);
  EXPECT_EQ(config->rope.beta_slow, 1);
  EXPECT_EQ(config->max_position, 4096);
  const auto given =
      Parse(With(Llama(), {{"rope_scaling", With(yarn, {{"attention_factor", 1.5}})}}));
  EXPECT_EQ(given->rope.attention_factor, 1.5f);
  const auto mscale = Parse(
      With(Llama(), {{"rope_scaling", With(yarn, {{"mscale", 0.707}, {"mscale_all_dim", 1.0}})}}));
  EXPECT_FLOAT_EQ(mscale->rope.attention_factor,
                  (0.0707f * std::log(4.0f) + 1) / (0.1f * std::log(4.0f) + 1));
  Json no_original = yarn;
  no_original.erase("original_max_position_embeddings");
  const auto config2 = Parse(With(Llama(), {{"rope_scaling", no_original}}));
  EXPECT_EQ(config2->rope.original_max_position, 2048);
  EXPECT_EQ(config2->max_position, 2048);
}

TEST(ModelConfigTest, MistralSlidesInEveryLayer) {
  Json mistral =
      With(Llama(), {{"architectures", {"MistralForCausalLM"}}, {"sliding_window", 512}});
  EXPECT_THAT(Parse(mistral)->sliding_window, Each(512));
  mistral["sliding_window"] = nullptr;
  EXPECT_THAT(Parse(mistral)->sliding_window, Each(0));
  mistral["sliding_window"] = 4096;  // beyond max_position_embeddings: it never bites
  EXPECT_THAT(Parse(mistral)->sliding_window, Each(0));
  mistral["hidden_size"] = 5120;  // Nemo's shape
  mistral["head_dim"] = 128;
  EXPECT_EQ(Parse(mistral)->head_dim, 128);
}

TEST(ModelConfigTest, Qwen2SlidesFromMaxWindowLayersWhereTheFlagSaysSo) {
  const auto plain = Parse(Qwen2());
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_TRUE(plain->qkv_bias);
  EXPECT_FALSE(plain->output_bias);
  EXPECT_THAT(plain->sliding_window, Each(0));
  const auto sliding = Parse(Qwen2({{"use_sliding_window", true}}));
  std::vector<int32_t> expected(22, 0);
  expected[20] = expected[21] = 512;
  EXPECT_EQ(sliding->sliding_window, expected);
  std::vector<std::string> types(22, "full_attention");
  types[3] = "sliding_attention";
  const auto explicit_types = Parse(Qwen2({{"use_sliding_window", true}, {"layer_types", types}}));
  ASSERT_TRUE(explicit_types.ok()) << explicit_types.status();
  EXPECT_EQ(explicit_types->sliding_window[3], 512);
  EXPECT_EQ(explicit_types->sliding_window[20], 0);
}

TEST(ModelConfigTest, Qwen3HasItsOwnHeadDimAndNorms) {
  Json qwen3 = With(Llama(), {{"architectures", {"Qwen3ForCausalLM"}}, {"head_dim", 128}});
  const auto config = Parse(qwen3);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->qk_norm, QkNorm::kHead);
  EXPECT_FALSE(config->qkv_bias);
  EXPECT_EQ(config->head_dim, 128);
  qwen3.erase("head_dim");
  EXPECT_THAT(Message(Parse(qwen3).status()), HasSubstr("head_dim is missing"));
}

Json Family(const char* architecture, const Json& changes) {
  return With(With(Llama(), {{"architectures", {architecture}}}), changes);
}

Json Gemma2(const Json& changes = Json::object()) {
  return With(Family("Gemma2ForCausalLM", {{"hidden_size", 3584},
                                           {"num_hidden_layers", 4},
                                           {"head_dim", 256},
                                           {"hidden_act", nullptr},
                                           {"hidden_activation", "gelu_pytorch_tanh"},
                                           {"query_pre_attn_scalar", 256},
                                           {"attn_logit_softcapping", 50.0},
                                           {"final_logit_softcapping", 30.0},
                                           {"tie_word_embeddings", nullptr},
                                           {"sliding_window", 1024}}),
              changes);
}

TEST(ModelConfigTest, Gemma2HasCapsScalesAndAWindowInEverySecondLayer) {
  const auto config = Parse(Gemma2());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->sliding_window, ElementsAre(1024, 0, 1024, 0));
  EXPECT_EQ(config->embedding_multiplier, 59.75f);  // the root, 59.87, in bf16
  EXPECT_EQ(config->attention_scale, 1.0f / 16);
  EXPECT_EQ(config->attention_cap, 50);
  EXPECT_EQ(config->logit_cap, 30);
  EXPECT_EQ(config->norm_offset, 1);
  EXPECT_EQ(config->activation, Activation::kGeluTanh);
  EXPECT_TRUE(config->tied_embeddings);
  EXPECT_EQ(config->names.mlp_norm, "pre_feedforward_layernorm");
  // transformers would take its default, so a file without the field is not guessed at.
  EXPECT_THAT(Message(Parse(Gemma2({{"attn_logit_softcapping", nullptr}})).status()),
              HasSubstr("attn_logit_softcapping is missing"));
}

Json Neox(const Json& changes = Json::object()) {
  return With({{"architectures", {"GPTNeoXForCausalLM"}},
               {"hidden_size", 512},
               {"intermediate_size", 2048},
               {"num_hidden_layers", 6},
               {"num_attention_heads", 8},
               {"vocab_size", 50304},
               {"max_position_embeddings", 2048},
               {"rotary_pct", 0.25},
               {"rotary_emb_base", 5000},
               {"layer_norm_eps", 1e-6}},
              changes);
}

Json Falcon(const Json& changes = Json::object()) {
  return With({{"architectures", {"FalconForCausalLM"}},
               {"hidden_size", 512},
               {"num_hidden_layers", 6},
               {"num_attention_heads", 8},
               {"vocab_size", 50304}},
              changes);
}

Json Gpt2(const Json& changes = Json::object()) {
  return With({{"architectures", {"GPT2LMHeadModel"}},
               {"n_embd", 512},
               {"n_layer", 2},
               {"n_head", 8},
               {"n_positions", 1024},
               {"n_inner", nullptr},
               {"vocab_size", 50257}},
              changes);
}

TEST(ModelConfigTest, NeoxHasLayerNormsInParallelAndRotatesAPart) {
  const auto config = Parse(Neox());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->layer_norm && config->parallel_residual);
  EXPECT_TRUE(config->qkv_bias && config->output_bias && config->mlp_bias);
  EXPECT_EQ(config->kv_heads, 8);
  EXPECT_EQ(config->rope.rotary_dims, 16);
  EXPECT_EQ(config->rope.theta, 5000);
  EXPECT_EQ(config->norm_epsilon, 1e-6f);
  EXPECT_EQ(config->activation, Activation::kGelu);
  const auto other = Parse(Neox({{"use_parallel_residual", false}, {"hidden_act", "gelu_fast"}}));
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_FALSE(other->parallel_residual);
  EXPECT_EQ(other->activation, Activation::kGeluTanh);
  EXPECT_THAT(Message(Parse(Neox({{"hidden_act", "relu"}})).status()),
              HasSubstr("hidden_act is \"relu\", allowed is one of gelu, gelu_new"));
}

TEST(ModelConfigTest, FalconHasVariants) {
  const auto small = Parse(Falcon());  // 7B
  ASSERT_TRUE(small.ok()) << small.status();
  EXPECT_EQ(small->kv_heads, 1);
  EXPECT_EQ(small->intermediate, 2048);
  EXPECT_EQ(small->names.mlp_norm, small->names.attention_norm);
  EXPECT_TRUE(small->parallel_residual && small->tied_embeddings && !small->mlp_bias);
  const auto large = Parse(Falcon({{"new_decoder_architecture", true}, {"num_kv_heads", 2}}));
  ASSERT_TRUE(large.ok()) << large.status();
  EXPECT_EQ(large->kv_heads, 2);
  EXPECT_EQ(large->names.attention_norm, "ln_attn");
  EXPECT_EQ(large->names.mlp_norm, "ln_mlp");
  const auto old = Parse(Falcon({{"multi_query", false}, {"parallel_attn", false}}));
  ASSERT_TRUE(old.ok()) << old.status();
  EXPECT_EQ(old->kv_heads, 8);
  EXPECT_FALSE(old->parallel_residual);
  EXPECT_EQ(old->names.mlp_norm, "post_attention_layernorm");
  for (const auto& [field, value] : {std::pair<const char*, Json>{"alibi", true},
                                     {"num_ln_in_parallel_attn", 2},
                                     {"activation", "silu"}}) {
    EXPECT_THAT(Message(Parse(Falcon({{field, value}})).status()), HasSubstr(field));
  }
  const Json sequential = {{"new_decoder_architecture", true}, {"parallel_attn", false}};
  EXPECT_THAT(Message(Parse(Falcon(sequential)).status()), HasSubstr("parallel_attn"));
  EXPECT_THAT(
      Message(Parse(Falcon({{"new_decoder_architecture", true}, {"num_kv_heads", 3}})).status()),
      HasSubstr("num_kv_heads"));
}

TEST(ModelConfigTest, Gpt2HasLearnedPositionsAndNamesOfItsOwn) {
  const auto config = Parse(Gpt2());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->hidden, 512);
  EXPECT_EQ(config->intermediate, 2048);
  EXPECT_EQ(config->max_position, 1024);
  EXPECT_EQ(config->kv_heads, 8);
  EXPECT_THAT(config->layer_rope, ElementsAre(LayerRope::kNone, LayerRope::kNone));
  EXPECT_TRUE(config->names.transposed && config->tied_embeddings);
  EXPECT_THAT(Message(Parse(Gpt2({{"n_layer", nullptr}})).status()),
              HasSubstr("n_layer is missing"));
  for (const auto& [field, value] : {std::pair<const char*, bool>{"scale_attn_weights", false},
                                     {"scale_attn_by_inverse_layer_idx", true},
                                     {"add_cross_attention", true}}) {
    EXPECT_THAT(Message(Parse(Gpt2({{field, value}})).status()), HasSubstr(field));
  }
}

TEST(ModelConfigTest, Gemma3RotatesLayersWithAWindowByTheirOwnBase) {
  const Json gemma3 = {{"architectures", {"Gemma3ForCausalLM"}},
                       {"num_hidden_layers", 7},
                       {"attn_logit_softcapping", nullptr},
                       {"final_logit_softcapping", nullptr},
                       {"rope_theta", 1e6},
                       {"rope_local_base_freq", 1e4},
                       {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8}}}};
  const auto config = Parse(Gemma2(gemma3));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->sliding_window, ElementsAre(1024, 1024, 1024, 1024, 1024, 0, 1024));
  EXPECT_EQ(config->RopeOf(4), LayerRope::kLocal);
  EXPECT_EQ(config->RopeOf(5), LayerRope::kMain);
  EXPECT_EQ(config->rope.factor, 8);
  EXPECT_EQ(config->local_rope.theta, 1e4f);
  EXPECT_EQ(config->local_rope.scaling, RopeScaling::kNone);
  // A window that covers everything disappears; the layer's rotation does not.
  const auto wide = Parse(Gemma2(With(gemma3, {{"sliding_window", 4096}})));
  EXPECT_THAT(wide->sliding_window, Each(0));
  EXPECT_EQ(wide->RopeOf(4), LayerRope::kLocal);
}

TEST(ModelConfigTest, PhiChoosesItsDivisorsByTheLongestContext) {
  std::vector<float> ones(24, 1.0f), twos(24, 2.0f);
  Json phi = Family(
      "Phi3ForCausalLM",
      {{"partial_rotary_factor", 0.75},
       {"original_max_position_embeddings", 512},
       {"rope_scaling", {{"type", "longrope"}, {"short_factor", ones}, {"long_factor", twos}}}});
  const auto config = Parse(phi);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rope.rotary_dims, 48);
  EXPECT_EQ(config->rope.divisors, twos);
  EXPECT_FLOAT_EQ(config->rope.attention_factor, std::sqrt(1 + std::log(4.0f) / std::log(512.0f)));
  phi["original_max_position_embeddings"] = 2048;
  EXPECT_EQ(Parse(phi)->rope.divisors, ones);
  EXPECT_EQ(Parse(phi)->rope.attention_factor, 1);
  phi["rope_scaling"]["type"] = "su";
  EXPECT_EQ(Parse(phi)->rope.divisors, ones);
  phi["rope_scaling"]["type"] = "yarn";
  EXPECT_FALSE(Parse(phi).ok());
  phi["rope_scaling"] = nullptr;  // Phi-4
  EXPECT_EQ(Parse(phi)->rope.scaling, RopeScaling::kNone);
  phi["partial_rotary_factor"] = 0.7;  // 44.8 of 64 dimensions, which transformers rounds down
  EXPECT_EQ(Parse(phi)->rope.rotary_dims, 44);
}

TEST(ModelConfigTest, SmolLm3HasLayersWithoutRope) {
  const Json smol = Family("SmolLM3ForCausalLM", {{"num_hidden_layers", 5}});
  const auto config = Parse(smol);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->layer_rope, ElementsAre(LayerRope::kMain, LayerRope::kMain, LayerRope::kMain,
                                              LayerRope::kNone, LayerRope::kMain));
  EXPECT_EQ(Parse(With(smol, {{"no_rope_layers", {0, 1, 1, 1, 1}}}))->RopeOf(0), LayerRope::kNone);
}

Json Qwen3Moe(const Json& changes = Json::object()) {
  return With(Family("Qwen3MoeForCausalLM", {{"num_hidden_layers", 4},
                                             {"head_dim", 128},
                                             {"num_experts", 128},
                                             {"num_experts_per_tok", 8},
                                             {"moe_intermediate_size", 768},
                                             {"decoder_sparse_step", 2},
                                             {"mlp_only_layers", {3}}}),
              changes);
}

TEST(ModelConfigTest, ExpertsOfQwenAndMixtral) {
  const auto qwen3 = Parse(Qwen3Moe());
  ASSERT_TRUE(qwen3.ok()) << qwen3.status();
  EXPECT_EQ(qwen3->experts.count, 128);
  EXPECT_EQ(qwen3->experts.per_token, 8);
  EXPECT_EQ(qwen3->experts.intermediate, 768);
  EXPECT_FALSE(qwen3->experts.normalise);  // as transformers, if the file does not say
  EXPECT_TRUE(Parse(Qwen3Moe({{"norm_topk_prob", true}}))->experts.normalise);
  EXPECT_FALSE(qwen3->HasExperts(0));
  EXPECT_TRUE(qwen3->HasExperts(1));
  EXPECT_FALSE(qwen3->HasExperts(3));
  const auto mixtral =
      Parse(Family("MixtralForCausalLM", {{"num_local_experts", 8}, {"num_experts_per_tok", 2}}));
  ASSERT_TRUE(mixtral.ok()) << mixtral.status();
  EXPECT_EQ(mixtral->experts.intermediate, 5632);
  EXPECT_TRUE(mixtral->experts.normalise);
  EXPECT_TRUE(mixtral->HasExperts(0));
  EXPECT_EQ(mixtral->names.gate, "w1");
  const auto qwen2 = Parse(Qwen3Moe(
      {{"architectures", {"Qwen2MoeForCausalLM"}}, {"shared_expert_intermediate_size", 5632}}));
  ASSERT_TRUE(qwen2.ok()) << qwen2.status();
  EXPECT_EQ(qwen2->experts.shared_intermediate, 5632);
  EXPECT_TRUE(qwen2->qkv_bias);
}

// openai/gpt-oss-20b's file, with fewer layers.
Json GptOss(const Json& changes = Json::object()) {
  const Json yarn = {{"beta_fast", 32.0},   {"beta_slow", 1.0},
                     {"factor", 32.0},      {"original_max_position_embeddings", 4096},
                     {"rope_type", "yarn"}, {"truncate", false}};
  const Json quantisation = {{"quant_method", "mxfp4"},
                             {"modules_to_not_convert", {"model.layers.*.self_attn", "lm_head"}}};
  return With({{"architectures", {"GptOssForCausalLM"}},
               {"attention_bias", true},
               {"eos_token_id", 200002},
               {"experts_per_token", 4},
               {"head_dim", 64},
               {"hidden_act", "silu"},
               {"hidden_size", 2880},
               {"initial_context_length", 4096},
               {"intermediate_size", 2880},
               {"layer_types", {"sliding_attention", "full_attention", "sliding_attention"}},
               {"max_position_embeddings", 131072},
               {"num_attention_heads", 64},
               {"num_experts_per_tok", 4},
               {"num_hidden_layers", 3},
               {"num_key_value_heads", 8},
               {"num_local_experts", 32},
               {"quantization_config", quantisation},
               {"rms_norm_eps", 1e-5},
               {"rope_scaling", yarn},
               {"rope_theta", 150000},
               {"sliding_window", 128},
               {"swiglu_limit", 7.0},
               {"tie_word_embeddings", false},
               {"vocab_size", 201088}},
              changes);
}

TEST(ModelConfigTest, GptOss) {
  const auto config = Parse(GptOss());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->sliding_window, ElementsAre(128, 0, 128));
  EXPECT_TRUE(config->attention_sinks);
  EXPECT_TRUE(config->qkv_bias);
  EXPECT_TRUE(config->output_bias);
  EXPECT_EQ(config->experts.count, 32);
  EXPECT_EQ(config->experts.per_token, 4);
  EXPECT_EQ(config->experts.intermediate, 2880);
  EXPECT_EQ(config->experts.gate_limit, 7);
  EXPECT_TRUE(config->experts.biases);
  EXPECT_TRUE(config->experts.normalise);
  EXPECT_FALSE(config->rope.truncate);
  EXPECT_EQ(config->rope.factor, 32);
  EXPECT_NEAR(config->rope.attention_factor, 0.1 * std::log(32.0) + 1, 1e-6);
  EXPECT_EQ(config->max_position, 131072);
  EXPECT_EQ(config->quantisation.method, QuantisationConfig::Method::kMxfp4);
  // transformers' defaults.
  const auto shorter = Parse(GptOss({{"layer_types", nullptr},
                                     {"swiglu_limit", nullptr},
                                     {"experts_per_token", nullptr},
                                     {"attention_bias", nullptr}}));
  ASSERT_TRUE(shorter.ok()) << shorter.status();
  EXPECT_THAT(shorter->sliding_window, ElementsAre(128, 0, 128));
  EXPECT_EQ(shorter->experts.gate_limit, 7);
  EXPECT_TRUE(shorter->output_bias);
}

Json Glm45(const Json& changes = Json::object()) {  // GLM-4.5-Air
  return With(Family("Glm4MoeForCausalLM", {{"hidden_size", 4096},
                                            {"num_hidden_layers", 46},
                                            {"num_attention_heads", 96},
                                            {"num_key_value_heads", 8},
                                            {"head_dim", 128},
                                            {"attention_bias", true},
                                            {"n_routed_experts", 128},
                                            {"n_shared_experts", 1},
                                            {"num_experts_per_tok", 8},
                                            {"moe_intermediate_size", 1408},
                                            {"first_k_dense_replace", 1},
                                            {"routed_scaling_factor", 1.0},
                                            {"num_nextn_predict_layers", 1}}),
              changes);
}

TEST(ModelConfigTest, Glm45) {
  const auto config = Parse(Glm45());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rope.rotary_dims, 64);
  EXPECT_FALSE(config->rope.interleaved);
  EXPECT_TRUE(config->qkv_bias);
  EXPECT_FALSE(config->output_bias);
  EXPECT_EQ(config->qk_norm, QkNorm::kNone);
  EXPECT_EQ(Parse(Glm45({{"use_qk_norm", true}}))->qk_norm, QkNorm::kHead);
  EXPECT_FALSE(config->HasExperts(0));
  EXPECT_TRUE(config->HasExperts(1));
  EXPECT_TRUE(config->experts.sigmoid);
  EXPECT_TRUE(config->experts.choice_bias);
  EXPECT_TRUE(config->experts.normalise);
  EXPECT_FALSE(config->experts.shared_gate);
  EXPECT_EQ(config->experts.shared_intermediate, 1408);
  EXPECT_FALSE(config->HasLatents());
}

Json DeepseekV2Lite(const Json& changes = Json::object()) {
  return With(Family("DeepseekV2ForCausalLM", {{"hidden_size", 2048},
                                               {"num_hidden_layers", 27},
                                               {"num_attention_heads", 16},
                                               {"num_key_value_heads", 16},
                                               {"q_lora_rank", nullptr},
                                               {"kv_lora_rank", 512},
                                               {"qk_nope_head_dim", 128},
                                               {"qk_rope_head_dim", 64},
                                               {"v_head_dim", 128},
                                               {"max_position_embeddings", 163840},
                                               {"rope_theta", 10000},
                                               {"rope_scaling",
                                                {{"type", "yarn"},
                                                 {"factor", 40},
                                                 {"original_max_position_embeddings", 4096},
                                                 {"beta_fast", 32},
                                                 {"beta_slow", 1},
                                                 {"mscale", 0.707},
                                                 {"mscale_all_dim", 0.707}}},
                                               {"n_routed_experts", 64},
                                               {"n_shared_experts", 2},
                                               {"num_experts_per_tok", 6},
                                               {"moe_intermediate_size", 1408},
                                               {"first_k_dense_replace", 1},
                                               {"moe_layer_freq", 1},
                                               {"n_group", 1},
                                               {"topk_group", 1},
                                               {"topk_method", "greedy"},
                                               {"scoring_func", "softmax"},
                                               {"norm_topk_prob", false},
                                               {"routed_scaling_factor", 1.0}}),
              changes);
}

Json DeepseekV3(const Json& changes = Json::object()) {
  return With(DeepseekV2Lite({{"architectures", {"DeepseekV3ForCausalLM"}},
                              {"hidden_size", 7168},
                              {"num_hidden_layers", 61},
                              {"num_attention_heads", 128},
                              {"num_key_value_heads", 128},
                              {"q_lora_rank", 1536},
                              {"rope_scaling",
                               {{"type", "yarn"},
                                {"factor", 40},
                                {"original_max_position_embeddings", 4096},
                                {"beta_fast", 32},
                                {"beta_slow", 1},
                                {"mscale", 1.0},
                                {"mscale_all_dim", 1.0}}},
                              {"n_routed_experts", 256},
                              {"n_shared_experts", 1},
                              {"num_experts_per_tok", 8},
                              {"moe_intermediate_size", 2048},
                              {"first_k_dense_replace", 3},
                              {"n_group", 8},
                              {"topk_group", 4},
                              {"topk_method", "noaux_tc"},
                              {"scoring_func", "sigmoid"},
                              {"norm_topk_prob", true},
                              {"routed_scaling_factor", 2.5},
                              {"num_nextn_predict_layers", 1}}),
              changes);
}

TEST(ModelConfigTest, LatentsOfDeepseekV2Lite) {
  const auto config = Parse(DeepseekV2Lite());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->latent.rank, 512);
  EXPECT_EQ(config->latent.query_rank, 0);
  EXPECT_EQ(config->latent.QueryDims(), 192);
  EXPECT_EQ(config->kv_heads, 1);
  EXPECT_EQ(config->head_dim, 576);
  EXPECT_EQ(config->AttentionWidth(), 16 * 128);
  EXPECT_EQ(config->rope.rotary_dims, 64);
  EXPECT_TRUE(config->rope.interleaved);
  EXPECT_EQ(config->rope.attention_factor, 1);
  EXPECT_NEAR(config->attention_scale, 0.114721, 1e-6);  // 192^-0.5 * 1.26080^2
  EXPECT_EQ(config->max_position, 163840);
  EXPECT_FALSE(config->HasExperts(0));
  EXPECT_TRUE(config->HasExperts(1));
  EXPECT_FALSE(config->experts.sigmoid);
  EXPECT_FALSE(config->experts.normalise);
  EXPECT_EQ(config->experts.groups, 1);
  EXPECT_EQ(config->experts.shared_intermediate, 2816);
  const auto grouped = Parse(DeepseekV2Lite({{"topk_method", "group_limited_greedy"},
                                             {"n_group", 8},
                                             {"topk_group", 3},
                                             {"routed_scaling_factor", 16.0}}));
  ASSERT_TRUE(grouped.ok()) << grouped.status();
  EXPECT_EQ(grouped->experts.groups, 8);
  EXPECT_EQ(grouped->experts.kept_groups, 3);
  EXPECT_EQ(grouped->experts.scale, 16);
}

TEST(ModelConfigTest, LatentsOfDeepseekV3) {
  const auto config = Parse(DeepseekV3());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->latent.query_rank, 1536);
  EXPECT_NEAR(config->attention_scale, 0.135234, 1e-6);  // 192^-0.5 * 1.36889^2
  EXPECT_FALSE(config->HasExperts(2));
  EXPECT_TRUE(config->HasExperts(3));
  EXPECT_TRUE(config->experts.sigmoid);
  EXPECT_TRUE(config->experts.choice_bias);
  EXPECT_EQ(config->experts.groups, 8);
  EXPECT_EQ(config->experts.kept_groups, 4);
  EXPECT_EQ(config->experts.scale, 2.5f);
  EXPECT_EQ(config->mtp_layers, 1);
  const auto plain = Parse(DeepseekV3({{"rope_scaling", nullptr}, {"rope_interleave", false}}));
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_NEAR(plain->attention_scale, 1 / std::sqrt(192.0), 1e-7);
  EXPECT_FALSE(plain->rope.interleaved);
  const auto every_second = Parse(DeepseekV3({{"moe_layer_freq", 2}}));
  EXPECT_FALSE(every_second->HasExperts(3));
  EXPECT_TRUE(every_second->HasExperts(4));
}

struct Refused {
  const char* name;
  Json changes;
  const char* error;
};

class ModelConfigRefusalTest : public testing::TestWithParam<Refused> {};

TEST_P(ModelConfigRefusalTest, NamesFieldValueAndWhatIsAllowed) {
  const auto config = Parse(With(Llama(), GetParam().changes));
  ASSERT_TRUE(absl::IsInvalidArgument(config.status())) << config.status();
  EXPECT_THAT(Message(config.status()), HasSubstr(GetParam().error));
}

Json Rope(const Json& rope) { return {{"rope_scaling", rope}}; }

INSTANTIATE_TEST_SUITE_P(
    Fields, ModelConfigRefusalTest,
    testing::Values(
        Refused{"architecture",
                {{"architectures", {"BloomForCausalLM"}}},
                "architectures is a list, allowed is a list of one of LlamaForCausalLM"},
        Refused{"two_architectures", {{"architectures", {"LlamaForCausalLM", "X"}}}, "X]"},
        Refused{"no_architecture", {{"architectures", nullptr}}, "architectures is absent"},
        Refused{"quantized", {{"quantization_config", {{"bits", 4}}}}, "quantization_config"},
        Refused{"dtype", {{"torch_dtype", "float8_e4m3fn"}}, "torch_dtype is \"float8_e4m3fn\""},
        Refused{"activation",
                {{"hidden_act", "gelu"}},
                "hidden_act is \"gelu\", allowed is one of silu, swish"},
        Refused{"layers",
                {{"num_hidden_layers", 0}},
                "num_hidden_layers is 0, allowed is an integer from 1 to 1024"},
        Refused{"layers_text", {{"num_hidden_layers", "22"}}, "num_hidden_layers is \"22\""},
        Refused{"layers_fraction", {{"num_hidden_layers", 2.5}}, "num_hidden_layers is 2.5"},
        Refused{"layers_huge", {{"num_hidden_layers", 18446744073709551615u}}, "num_hidden_layers"},
        Refused{"hidden", {{"hidden_size", 70000}}, "hidden_size is 70000"},
        Refused{"vocab", {{"vocab_size", 2097153}}, "an integer from 1 to 2097152"},
        Refused{"kv_heads",
                {{"num_key_value_heads", 5}},
                "num_key_value_heads is 5, allowed is a divisor of num_attention_heads (32)"},
        Refused{"head_dim", {{"head_dim", 60}}, "head_dim is 60, allowed is a multiple of 8"},
        Refused{"head_dim_large", {{"head_dim", 264}}, "head_dim is 264"},
        Refused{"indivisible", {{"hidden_size", 2047}}, "hidden_size is 2047"},
        Refused{"epsilon", {{"rms_norm_eps", 0}}, "rms_norm_eps"},
        Refused{"theta", {{"rope_theta", 0.5}}, "rope_theta is 0.5"},
        Refused{"tie", {{"tie_word_embeddings", 1}}, "tie_word_embeddings is 1"},
        Refused{
            "dynamic", Rope({{"type", "dynamic"}, {"factor", 2.0}}),
            "rope_scaling.type is \"dynamic\", allowed is one of default, linear, llama3, yarn"},
        Refused{"longrope", Rope({{"rope_type", "longrope"}}),
                "rope_scaling.original_max_position_embeddings is missing"},
        Refused{"no_type", Rope({{"factor", 2.0}}), "rope_scaling.rope_type is absent"},
        Refused{"no_factor", Rope({{"type", "linear"}}), "rope_scaling.factor is missing"},
        Refused{"factor", Rope({{"type", "linear"}, {"factor", 0.5}}), "factor is 0.5"},
        Refused{"llama3",
                Rope({{"type", "llama3"},
                      {"factor", 8},
                      {"low_freq_factor", 4},
                      {"high_freq_factor", 4},
                      {"original_max_position_embeddings", 64}}),
                "low_freq_factor is 4, allowed is less than high_freq_factor"},
        Refused{"llama3_original",
                Rope({{"type", "llama3"},
                      {"factor", 8},
                      {"low_freq_factor", 1},
                      {"high_freq_factor", 4}}),
                "original_max_position_embeddings is missing"},
        Refused{"rope_by_layer", Rope({{"full_attention", {{"rope_type", "default"}}}}),
                "one RoPE for all layers"},
        Refused{"rope_list", Rope(Json::array()), "rope_scaling is a list, allowed is an object"},
        Refused{"partial", {{"partial_rotary_factor", 0.5}}, "partial_rotary_factor is 0.5"},
        Refused{"layer_types", {{"layer_types", {"full_attention"}}}, "one entry per layer (22)"},
        Refused{"linear_attention",
                {{"layer_types", std::vector<std::string>(22, "linear_attention")}},
                "full_attention or sliding_attention"},
        Refused{"sliding_without_window",
                {{"layer_types", std::vector<std::string>(22, "sliding_attention")}},
                "no sliding_window is in use"},
        Refused{"no_rope_layers",
                {{"architectures", {"SmolLM3ForCausalLM"}}, {"no_rope_layers", {1, 0}}},
                "no_rope_layers is a list, allowed is one entry per layer (22)"},
        Refused{"smollm3_window",
                {{"architectures", {"SmolLM3ForCausalLM"}}, {"use_sliding_window", true}},
                "use_sliding_window is true, allowed is false"},
        Refused{"no_experts", Qwen3Moe({{"num_experts", 0}}), "num_experts is 0"},
        Refused{"more_experts_than_there_are", Qwen3Moe({{"num_experts", 4}}),
                "num_experts_per_tok is 8, allowed is an integer from 1 to 4"},
        Refused{"experts_size", Qwen3Moe({{"moe_intermediate_size", nullptr}}),
                "moe_intermediate_size is missing"},
        Refused{"gpt_oss_bias", GptOss({{"attention_bias", false}}),
                "attention_bias is false, allowed is true"},
        Refused{"gpt_oss_experts", GptOss({{"experts_per_token", 2}}), "experts_per_token is 2"},
        Refused{"gpt_oss_limit", GptOss({{"swiglu_limit", 0}}), "swiglu_limit is 0"},
        Refused{"gpt_oss_rope", GptOss({{"rope_scaling", nullptr}}),
                "rope_scaling is absent, allowed is an object"},
        Refused{"gpt_oss_window", GptOss({{"sliding_window", nullptr}}),
                "sliding_window is missing"},
        Refused{"latents_without_rank", DeepseekV3({{"kv_lora_rank", nullptr}}),
                "kv_lora_rank is missing"},
        Refused{"latents_odd", DeepseekV3({{"kv_lora_rank", 500}}),
                "kv_lora_rank is 500, allowed is a multiple of 8"},
        Refused{"latents_wide", DeepseekV3({{"kv_lora_rank", 2048}}), "from 8 to 1024"},
        Refused{"latents_of_many_heads",
                DeepseekV3({{"num_attention_heads", 256}, {"num_key_value_heads", 256}}),
                "num_attention_heads is 256, allowed is at most 128 with latents"},
        Refused{"latents_with_biases", DeepseekV3({{"attention_bias", true}}),
                "attention_bias is true, allowed is false"},
        Refused{"deepseek_scores", DeepseekV3({{"scoring_func", "softmax"}}),
                "scoring_func is \"softmax\""},
        Refused{"deepseek_method", DeepseekV3({{"topk_method", "greedy"}}),
                "topk_method is \"greedy\""},
        Refused{"deepseek_normalised", DeepseekV2Lite({{"norm_topk_prob", true}}),
                "norm_topk_prob is true, allowed is false"},
        Refused{"expert_groups", DeepseekV3({{"n_group", 7}}),
                "n_group is 7, allowed is a number of groups of two or more"},
        Refused{"expert_groups_kept", DeepseekV3({{"n_group", 128}, {"topk_group", 3}}),
                "topk_group is 3, allowed is as many groups of 2"},
        Refused{"granite",
                {{"architectures", {"GraniteForCausalLM"}}},
                "embedding_multiplier is missing"},
        Refused{"phi_partial",
                {{"architectures", {"Phi3ForCausalLM"}}, {"partial_rotary_factor", 0.01}},
                "partial_rotary_factor is 0.01, allowed is an even number of head_dim's 64"},
        Refused{"gemma3_caps", Gemma2({{"architectures", {"Gemma3ForCausalLM"}}}),
                "attn_logit_softcapping is 50.0, allowed is absent"},
        Refused{"gemma3_bidirectional",
                Gemma2({{"architectures", {"Gemma3ForCausalLM"}},
                        {"attn_logit_softcapping", nullptr},
                        {"final_logit_softcapping", nullptr},
                        {"use_bidirectional_attention", true}}),
                "use_bidirectional_attention is true"},
        Refused{"gemma2_activation", Gemma2({{"hidden_activation", "gelu"}}),
                "hidden_activation is \"gelu\""},
        Refused{"eos", {{"eos_token_id", 32000}}, "eos_token_id is 32000"},
        Refused{"eos_list", {{"eos_token_id", {1, -1}}}, "eos_token_id is a list"},
        Refused{"bos", {{"bos_token_id", -1}}, "bos_token_id is -1"}),
    [](const auto& tested) { return tested.param.name; });

TEST(ModelConfigTest, WhatIsNotAnObjectOfJson) {
  EXPECT_THAT(Message(ParseModelConfig("{\"a\": ", "").status()), HasSubstr("not JSON at byte"));
  EXPECT_THAT(Message(ParseModelConfig("[1]", "").status()), HasSubstr("not a JSON object"));
  EXPECT_THAT(Message(ParseModelConfig(std::string(2 << 20, ' '), "").status()),
              HasSubstr("the limit is 1048576"));
  EXPECT_THAT(Message(ParseModelConfig(R"({"a":1e999})", "").status()), HasSubstr("number"));
  EXPECT_THAT(Message(ParseModelConfig(Llama().dump(), "7").status()),
              HasSubstr("generation_config.json"));
  // Deep nesting neither overflows a stack here nor when it is destroyed.
  EXPECT_FALSE(ParseModelConfig(R"({"a":)" + std::string(500000, '['), "").ok());
  const std::string deep = std::string(250000, '[') + std::string(250000, ']');
  EXPECT_FALSE(ParseModelConfig(R"({"rope_scaling":)" + deep + "}", "").ok());
}

TEST(ModelConfigTest, LoadsFromADirectoryAndNamesWhatIsMissing) {
  const TempFolder directory;
  const auto missing = LoadModelConfig(directory.path());
  EXPECT_TRUE(absl::IsNotFound(missing.status()));
  EXPECT_THAT(Message(missing.status()), HasSubstr(directory.path() + "/config.json"));
  const auto name_of_a_hub = LoadModelConfig("meta-llama/Llama-3.1-8B");
  EXPECT_TRUE(absl::IsNotFound(name_of_a_hub.status()));
  EXPECT_THAT(Message(name_of_a_hub.status()), HasSubstr("models are not downloaded"));
  directory.Write("config.json", Llama().dump());
  EXPECT_THAT(LoadModelConfig(directory.path())->eos_token_ids, ElementsAre(2));
  directory.Write("generation_config.json", R"({"eos_token_id": [7, 8]})");
  EXPECT_THAT(LoadModelConfig(directory.path())->eos_token_ids, ElementsAre(7, 8));
  directory.Write("generation_config.json", "{");
  EXPECT_THAT(Message(LoadModelConfig(directory.path()).status()),
              HasSubstr("generation_config.json"));
}

}  // namespace
}  // namespace penstock
