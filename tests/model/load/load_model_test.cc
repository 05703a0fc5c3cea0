#include "model/load/load_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "lab/fake/temp_folder.h"
#include "tests/model/checkpoint/safetensors_writer.h"

namespace penstock {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

nlohmann::json Config() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"hidden_size", 16},
          {"intermediate_size", 32},
          {"num_hidden_layers", 1},
          {"num_attention_heads", 2},
          {"num_key_value_heads", 1},
          {"vocab_size", 32},
          {"max_position_embeddings", 64}};
}

std::vector<WrittenTensor> Tensors() {
  const std::string layer = "model.layers.0.";
  return {{"lm_head.weight", {32, 16}},
          {"model.embed_tokens.weight", {32, 16}},
          {layer + "input_layernorm.weight", {16}},
          {layer + "mlp.down_proj.weight", {16, 32}},
          {layer + "mlp.gate_proj.weight", {32, 16}},
          {layer + "mlp.up_proj.weight", {32, 16}},
          {layer + "post_attention_layernorm.weight", {16}},
          {layer + "self_attn.k_proj.weight", {8, 16}},
          {layer + "self_attn.o_proj.weight", {16, 16}},
          {layer + "self_attn.q_proj.weight", {16, 16}},
          {layer + "self_attn.v_proj.weight", {8, 16}},
          {"model.norm.weight", {16}}};
}

absl::StatusOr<LoadedModel> Load(const nlohmann::json& config,
                                 const std::vector<WrittenTensor>& tensors) {
  const TempFolder directory;
  directory.Write("config.json", config.dump());
  directory.Write("model.safetensors", SafetensorsBytes(tensors));
  return LoadModel(directory.path());
}

// Pages with centred keys depend on the means, so workers with others have another model.
TEST(LoadModel, TheFingerprintHasTheMeansOfKeys) {
  const TempFolder directory;
  directory.Write("config.json", Config().dump());
  directory.Write("model.safetensors", SafetensorsBytes(Tensors()));
  EXPECT_THAT(Message(LoadModel(directory.path(), {.key_means = true}).status()),
              HasSubstr("key_means.safetensors"));
  std::set<uint64_t> fingerprints = {LoadModel(directory.path())->fingerprint};
  for (const char fill : {'\0', '\1'}) {
    directory.Write("key_means.safetensors", SafetensorsBytes({{"layers.0", {1, 8}, "F32", fill}}));
    const auto model = LoadModel(directory.path(), {.key_means = true});
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(model->weights.layers[0].key_means.size(), 8u);
    fingerprints.insert(model->fingerprint);
    EXPECT_TRUE(LoadModel(directory.path())->weights.layers[0].key_means.empty());
  }
  EXPECT_EQ(fingerprints.size(), 3u);
}

std::string LoadError(const nlohmann::json& config, const std::vector<WrittenTensor>& tensors) {
  return Message(Load(config, tensors).status());
}

std::vector<WrittenTensor> Without(std::string_view name) {
  auto tensors = Tensors();
  std::erase_if(tensors, [name](const WrittenTensor& tensor) { return tensor.name == name; });
  return tensors;
}

std::vector<WrittenTensor> And(const WrittenTensor& extra) {
  auto tensors = Tensors();
  tensors.push_back(extra);
  return tensors;
}

// GPT-2's own file has names without "transformer.", and masks that follow from config.json.
TEST(LoadModelTest, Gpt2HasShortOrLongNamesAndTheSameWeights) {
  const nlohmann::json config = {{"architectures", {"GPT2LMHeadModel"}},
                                 {"n_embd", 16},
                                 {"n_layer", 1},
                                 {"n_head", 2},
                                 {"n_positions", 8},
                                 {"vocab_size", 32}};
  const auto tensors = [](const std::string& prefix) {
    const std::string layer = prefix + "h.0.";
    return std::vector<WrittenTensor>{{layer + "attn.bias", {1, 1, 8, 8}},
                                      {layer + "attn.c_attn.bias", {48}},
                                      {layer + "attn.c_attn.weight", {16, 48}, "F32", 0x3e},
                                      {layer + "attn.c_proj.bias", {16}},
                                      {layer + "attn.c_proj.weight", {16, 16}},
                                      {layer + "ln_1.bias", {16}},
                                      {layer + "ln_1.weight", {16}},
                                      {layer + "ln_2.bias", {16}},
                                      {layer + "ln_2.weight", {16}},
                                      {layer + "mlp.c_fc.bias", {64}},
                                      {layer + "mlp.c_fc.weight", {16, 64}},
                                      {layer + "mlp.c_proj.bias", {16}},
                                      {layer + "mlp.c_proj.weight", {64, 16}},
                                      {prefix + "ln_f.bias", {16}},
                                      {prefix + "ln_f.weight", {16}},
                                      {prefix + "wpe.weight", {8, 16}},
                                      {prefix + "wte.weight", {32, 16}}};
  };
  for (const std::string prefix : {"", "transformer."}) {
    const auto model = Load(config, tensors(prefix));
    ASSERT_TRUE(model.ok()) << Message(model.status());
    std::vector<float> row(16);
    model->weights.layers[0].qkv.GetRow(47, row.data());
    EXPECT_NE(row[15], 0.0f);
    EXPECT_EQ(model->weights.layers[0].attention_norm.size(), 32u);
  }
  auto untransposed = tensors("");
  untransposed[2].shape = {48, 16};
  EXPECT_THAT(LoadError(config, untransposed),
              HasSubstr("has shape [48, 16], config.json implies [16, 48]"));
}

TEST(LoadModelTest, LoadsEveryDtype) {
  for (const char* dtype : {"F32", "F16", "BF16"}) {
    auto tensors = Tensors();
    for (WrittenTensor& tensor : tensors) tensor.dtype = dtype;
    const auto model = Load(Config(), tensors);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(model->weights.config.layers, 1);
    EXPECT_EQ(model->weights.layers.size(), 1u);
  }
}

TEST(LoadModelTest, MissingTensorsAreNamed) {
  for (const WrittenTensor& tensor : Tensors()) {
    EXPECT_THAT(LoadError(Config(), Without(tensor.name)), HasSubstr(tensor.name));
  }
}

TEST(LoadModelTest, MisshapenTensorsAreNamedWithBothShapes) {
  auto tensors = Tensors();
  tensors[9].shape = {16, 8};
  EXPECT_THAT(LoadError(Config(), tensors),
              AllOf(HasSubstr("self_attn.q_proj.weight"), HasSubstr("16, 8"), HasSubstr("16, 16")));
  auto config = Config();
  config["vocab_size"] = 40;
  EXPECT_THAT(LoadError(config, Tensors()), AllOf(HasSubstr("32, 16"), HasSubstr("40, 16")));
}

TEST(LoadModelTest, TensorsWithoutAPlaceAreRefused) {
  EXPECT_THAT(
      LoadError(Config(), And({"model.layers.0.self_attn.q_proj.bias", {16}})),
      AllOf(HasSubstr("self_attn.q_proj.bias\" of shape [16] has no place"), HasSubstr("Llama")));
  EXPECT_THAT(LoadError(Config(), And({"model.layers.1.input_layernorm.weight", {16}})),
              HasSubstr("model.layers.1.input_layernorm.weight"));
  EXPECT_TRUE(Load(Config(), And({"model.layers.0.self_attn.rotary_emb.inv_freq", {4}})).ok());
}

TEST(LoadModelTest, TiedModelsMayCarryTheHeadOrNot) {
  auto config = Config();
  config["tie_word_embeddings"] = true;
  EXPECT_TRUE(Load(config, Tensors()).ok());
  EXPECT_TRUE(Load(config, Without("lm_head.weight")).ok());
}

TEST(LoadModelTest, UnreadableDtypeIsNamed) {
  auto tensors = Tensors();
  tensors[11].dtype = "I16";
  EXPECT_THAT(LoadError(Config(), tensors),
              AllOf(HasSubstr("model.norm.weight"), HasSubstr("dtype is I16, allowed are BF16")));
}

// Two fine-tunes differ in nothing but weights, and their KV must never be taken for each other's.
TEST(LoadModelTest, FingerprintCoversEveryWeightAndTheConfig) {
  const uint64_t base = Load(Config(), Tensors())->fingerprint;
  EXPECT_EQ(Load(Config(), Tensors())->fingerprint, base);
  for (size_t i = 0; i < Tensors().size(); i++) {
    auto tensors = Tensors();
    tensors[i].fill = 1;
    EXPECT_NE(Load(Config(), tensors)->fingerprint, base) << tensors[i].name;
  }
  auto swapped = Tensors();
  swapped[4].fill = 1;  // gate and up: equal shapes
  auto other = Tensors();
  other[5].fill = 1;
  EXPECT_NE(Load(Config(), swapped)->fingerprint, Load(Config(), other)->fingerprint);
  auto config = Config();
  config["rope_theta"] = 20000;
  EXPECT_NE(Load(config, Tensors())->fingerprint, base);
}

}  // namespace
}  // namespace penstock
