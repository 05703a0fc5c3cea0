#include "model/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lab/fake/temp_folder.h"
#include "tests/model/checkpoint/safetensors_writer.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kConfig[] = R"({"architectures":["LlamaForCausalLM"],"hidden_size":16,
  "intermediate_size":32,"num_hidden_layers":1,"num_attention_heads":2,"num_key_value_heads":1,
  "vocab_size":32,"max_position_embeddings":64})";

std::string Error(const TempFolder& directory) {
  return Message(Checkpoint::Open(directory.path()).status());
}

std::string Index(const nlohmann::json& weight_map) {
  return nlohmann::json{{"metadata", {{"total_size", 1}}}, {"weight_map", weight_map}}.dump();
}

TEST(CheckpointTest, OneFile) {
  const TempFolder directory;
  directory.Write("config.json", kConfig);
  directory.Write("model.safetensors",
                  SafetensorsBytes({{"b", {2, 3}, "F32", 'x'}, {"a", {4}, "BF16"}}));
  const auto checkpoint = Checkpoint::Open(directory.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->config().hidden, 16);
  EXPECT_THAT(checkpoint->tensor_names(), ElementsAre("a", "b"));
  const auto b = checkpoint->Find("b");
  ASSERT_TRUE(b.ok());
  EXPECT_EQ(b->info->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(b->bytes.size(), 24u);
  EXPECT_EQ(b->bytes[23], std::byte{'x'});
  EXPECT_EQ(b->file, "model.safetensors");
  EXPECT_TRUE(absl::IsNotFound(checkpoint->Find("c").status()));
}

TEST(CheckpointTest, Shards) {
  const TempFolder directory;
  directory.Write("config.json", kConfig);
  directory.Write("m-1.safetensors", SafetensorsBytes({{"a", {1}, "F32", 'a'}, {"c", {1}}}));
  directory.Write("m-2.safetensors", SafetensorsBytes({{"b", {1}, "F32", 'b'}}));
  directory.Write(
      "model.safetensors.index.json",
      Index({{"a", "m-1.safetensors"}, {"b", "m-2.safetensors"}, {"c", "m-1.safetensors"}}));
  const auto checkpoint = Checkpoint::Open(directory.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT(checkpoint->tensor_names(), ElementsAre("a", "b", "c"));
  EXPECT_EQ(checkpoint->Find("b")->bytes[0], std::byte{'b'});
  EXPECT_EQ(checkpoint->Find("b")->file, "m-2.safetensors");
}

constexpr char kGptOss[] = R"({"architectures":["GptOssForCausalLM"],"hidden_size":16,"head_dim":8,
  "intermediate_size":32,"num_hidden_layers":1,"num_attention_heads":2,"num_key_value_heads":1,
  "vocab_size":32,"max_position_embeddings":64,"sliding_window":8,"num_local_experts":2,
  "num_experts_per_tok":1,"rope_scaling":{"rope_type":"default"}})";

// gpt-oss: a tensor of all experts becomes one of each, whose bytes follow each other.
TEST(CheckpointTest, TensorsOfAllExpertsAreSplit) {
  const TempFolder directory;
  directory.Write("config.json", kGptOss);
  directory.Write("model.safetensors",
                  SafetensorsBytes({{"m.experts.up_blocks", {2, 1, 8}, "U8", 0, {1, 2, 3, 4}},
                                    {"m.experts.up_bias", {2, 1}, "F32", 0, {5, 6}},
                                    {"m.experts.down", {2, 2, 1}, "F32", 0, {7, 8, 9, 10}},
                                    {"m.experts.gate.weight", {2, 1}, "F32", 0, {11, 12}},
                                    {"m.router", {1}}}));
  const auto checkpoint = Checkpoint::Open(directory.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT(
      checkpoint->tensor_names(),
      ElementsAre("m.experts.0.down.weight", "m.experts.0.gate.weight", "m.experts.0.up.bias",
                  "m.experts.0.up.blocks", "m.experts.1.down.weight", "m.experts.1.gate.weight",
                  "m.experts.1.up.bias", "m.experts.1.up.blocks", "m.router"));
  const auto first_byte = [&](const char* name) { return checkpoint->Find(name)->bytes[0]; };
  EXPECT_EQ(first_byte("m.experts.0.up.blocks"), std::byte{1});
  EXPECT_EQ(first_byte("m.experts.1.up.blocks"), std::byte{3});
  EXPECT_EQ(checkpoint->Find("m.experts.1.up.blocks")->info->shape, (std::vector<int64_t>{1, 8}));
  EXPECT_EQ(first_byte("m.experts.1.up.bias"), std::byte{6});
  EXPECT_EQ(first_byte("m.experts.1.down.weight"), std::byte{9});
  EXPECT_EQ(first_byte("m.experts.1.gate.weight"), std::byte{12});
}

TEST(CheckpointTest, TensorsOfAllExpertsThatDoNotFitAreNamed) {
  const TempFolder directory;
  directory.Write("config.json", kGptOss);
  const auto error = [&](const std::vector<WrittenTensor>& tensors) {
    directory.Write("model.safetensors", SafetensorsBytes(tensors));
    return Error(directory);
  };
  EXPECT_THAT(
      error({{"m.experts.up", {3, 1}}}),
      HasSubstr(R"(tensor "m.experts.up" has shape [3, 1], config.json implies 2 experts)"));
  EXPECT_THAT(error({{"m.experts.up", {}}}), HasSubstr("has shape []"));
  EXPECT_THAT(
      error({{"m.experts.up", {2}}, {"m.experts.1.up.weight", {1}}}),
      HasSubstr(R"(tensor "m.experts.up" has an expert that is in "m.experts.1.up.weight" too)"));
}

TEST(CheckpointTest, MissingFilesAreNamed) {
  const TempFolder directory;
  EXPECT_THAT(Error(directory), HasSubstr("config.json"));
  directory.Write("config.json", kConfig);
  EXPECT_THAT(Error(directory), HasSubstr("neither model.safetensors nor"));
  directory.Write("pytorch_model.bin", "x");
  EXPECT_THAT(Error(directory), HasSubstr("convert it to safetensors"));
  directory.Write("model.safetensors.index.json", Index({{"a", "gone.safetensors"}}));
  EXPECT_TRUE(absl::IsNotFound(Checkpoint::Open(directory.path()).status()));
  EXPECT_THAT(Error(directory), HasSubstr("gone.safetensors"));
}

TEST(CheckpointTest, IndexAndShardsMustAgree) {
  const TempFolder directory;
  directory.Write("config.json", kConfig);
  directory.Write("m-1.safetensors", SafetensorsBytes({{"a", {1}}}));
  directory.Write("m-2.safetensors", SafetensorsBytes({{"b", {1}}}));
  const auto with_index = [&](const nlohmann::json& weight_map) {
    directory.Write("model.safetensors.index.json", Index(weight_map));
    return Error(directory);
  };
  EXPECT_THAT(with_index({{"a", "m-1.safetensors"}, {"b", "m-1.safetensors"}}),
              HasSubstr("tensor \"b\" is not in m-1.safetensors"));
  EXPECT_THAT(with_index({{"a", "m-1.safetensors"}, {"x", "m-2.safetensors"}}),
              HasSubstr("tensor \"x\" is not in m-2.safetensors"));
  directory.Write("m-2.safetensors", SafetensorsBytes({{"b", {1}}, {"c", {1}}}));
  EXPECT_THAT(with_index({{"a", "m-1.safetensors"}, {"b", "m-2.safetensors"}}),
              HasSubstr("tensor \"c\" of m-2.safetensors is not listed"));
  directory.Write("m-2.safetensors", SafetensorsBytes({{"a", {1}}, {"b", {1}}}));
  EXPECT_THAT(with_index({{"a", "m-1.safetensors"}, {"b", "m-2.safetensors"}}),
              HasSubstr("tensor \"a\" is in m-1.safetensors too"));
}

TEST(CheckpointTest, ShardNamesStayInTheDirectory) {
  for (const char* name : {"../m.safetensors", "/etc/m.safetensors", "a/b.safetensors", "..",
                           ".safetensors", "a\\b.safetensors", "m.bin", ""}) {
    const auto parsed = ParseSafetensorsIndex(Index({{"a", name}}));
    ASSERT_TRUE(absl::IsInvalidArgument(parsed.status())) << name;
    EXPECT_THAT(Message(parsed.status()), HasSubstr("tensor \"a\""));
  }
  EXPECT_FALSE(ParseSafetensorsIndex(Index({{"a", std::string("m\0.safetensors", 14)}})).ok());
  EXPECT_FALSE(ParseSafetensorsIndex(Index({{"a", 3}})).ok());
  EXPECT_FALSE(ParseSafetensorsIndex(Index(nlohmann::json::object())).ok());
  EXPECT_FALSE(ParseSafetensorsIndex("{}").ok());
  EXPECT_FALSE(ParseSafetensorsIndex("{\"weight_map\":").ok());
  EXPECT_TRUE(ParseSafetensorsIndex(Index({{"a", "model-00001-of-00002.safetensors"}})).ok());
}

TEST(CheckpointTest, LayoutFingerprintSeesConfigHeadersAndSizes) {
  const TempFolder directory;
  directory.Write("config.json", kConfig);
  directory.Write("model.safetensors", SafetensorsBytes({{"a", {4}}}));
  const auto fingerprint = [&] { return Checkpoint::Open(directory.path())->layout_fingerprint(); };
  const uint64_t first = fingerprint();
  EXPECT_EQ(fingerprint(), first);
  directory.Write("model.safetensors", SafetensorsBytes({{"a", {2, 2}}}));
  const uint64_t reshaped = fingerprint();
  EXPECT_NE(reshaped, first);
  directory.Write("config.json", std::string(kConfig) + "\n");
  EXPECT_NE(fingerprint(), reshaped);
}

}  // namespace
}  // namespace penstock
