#include "model/checkpoint/embedding_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <optional>

#include "lab/fake/temp_folder.h"
#include "model/checkpoint/model_config.h"
#include "tests/model/gguf/gguf_writer.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

constexpr const char* kModules = R"([
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "n", "type": "sentence_transformers.models.Normalize"}])";
constexpr const char* kPooling = R"({"word_embedding_dimension": 8, "pooling_mode_cls_token": false,
    "pooling_mode_lasttoken": true, "include_prompt": true})";

struct Files {
  std::optional<std::string> modules = kModules;
  std::optional<std::string> pooling = kPooling;
};

absl::StatusOr<EmbeddingConfig> Load(const Files& files) {
  const TempFolder folder;
  std::filesystem::create_directory(folder.path() + "/1_Pooling");
  if (files.modules) folder.Write("modules.json", *files.modules);
  if (files.pooling) folder.Write("1_Pooling/config.json", *files.pooling);
  return LoadEmbeddingConfig(folder.path(), /*hidden=*/8);
}

TEST(EmbeddingConfigTest, LastTokenWithAndWithoutNormalisation) {
  const auto normalised = Load({});
  ASSERT_TRUE(normalised.ok()) << normalised.status();
  EXPECT_EQ(normalised->dimensions, 8);
  EXPECT_TRUE(normalised->normalise);
  const auto plain = Load({.modules = R"([{"type": "a.Transformer"},
                                          {"type": "b.Pooling", "path": "1_Pooling"}])"});
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_FALSE(plain->normalise);
  // The field's newer form.
  EXPECT_TRUE(Load({.pooling = R"({"embedding_dimension": 8, "pooling_mode": "lasttoken"})"}).ok());
}

TEST(EmbeddingConfigTest, TheMeanOfAllTokens) {
  EXPECT_EQ(Load({})->pooling, Pooling::kLastToken);
  for (const char* pooling :
       {R"({"word_embedding_dimension": 8, "pooling_mode_cls_token": false,
            "pooling_mode_mean_tokens": true, "pooling_mode_lasttoken": false})",
        R"({"word_embedding_dimension": 8, "pooling_mode_mean_tokens": true})",
        R"({"embedding_dimension": 8, "pooling_mode": "mean"})"}) {
    const auto config = Load({.pooling = pooling});
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->pooling, Pooling::kMean);
  }
}

TEST(EmbeddingConfigTest, MostCheckpointsHaveNone) {
  EXPECT_TRUE(absl::IsNotFound(Load({.modules = std::nullopt}).status()));
}

// Of a file with `pooling_type`, or without if it is negative.
absl::StatusOr<EmbeddingConfig> LoadGguf(int pooling_type) {
  const TempFolder folder;
  GgufWriter writer = LlamaMetadata("qwen3");
  if (pooling_type >= 0) writer.U32("qwen3.pooling_type", static_cast<uint32_t>(pooling_type));
  writer.Tensor("token_embd.weight", "Q8_0", {10, 32});
  folder.Write("m.gguf", writer.Bytes());
  EXPECT_TRUE(LoadModelConfig(folder.path() + "/m.gguf").ok());
  return LoadEmbeddingConfig(folder.path() + "/m.gguf", /*hidden=*/32);
}

TEST(EmbeddingConfigTest, AGgufFileNamesItsPooling) {
  const auto last = LoadGguf(3);
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ(last->dimensions, 32);
  EXPECT_TRUE(last->normalise);
  for (const int none : {-1, 0}) EXPECT_TRUE(absl::IsNotFound(LoadGguf(none).status()));
  EXPECT_EQ(LoadGguf(1)->pooling, Pooling::kMean);
  EXPECT_THAT(Message(LoadGguf(2).status()), HasSubstr("pooling_mode is \"cls\""));
  EXPECT_THAT(Message(LoadGguf(9).status()), HasSubstr("\"qwen3.pooling_type\" is 9"));
}

struct Refused {
  Files files;
  std::string message;
};

class RefusedEmbeddings : public ::testing::TestWithParam<Refused> {};

TEST_P(RefusedEmbeddings, NamesFileAndField) {
  const absl::Status status = Load(GetParam().files).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(Message(status), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    All, RefusedEmbeddings,
    ::testing::Values(
        Refused{{.modules = "{}"}, "modules.json: must be a list of 1 to 8 modules"},
        Refused{{.modules = "[]"}, "modules.json: must be a list of 1 to 8 modules"},
        Refused{{.modules = "[1, 2]"}, "modules.json: module 0 is ''"},
        Refused{{.modules = "["}, "modules.json"},
        Refused{{.modules = R"([{"type": "a.Transformer"}])"}, "modules.json: has no Pooling"},
        Refused{
            {.modules = R"([{"type": "a.Transformer"}, {"type": "a.Pooling", "path": "1_Pooling"},
                                {"type": "a.Dense", "path": "2_Dense"}])"},
            "module 2 is 'Dense', allowed is Normalize"},
        Refused{
            {.modules = R"([{"type": "a.Transformer"}, {"type": "a.Pooling", "path": "../1"}])"},
            "path is '../1'; it must be a folder of the checkpoint"},
        Refused{
            {.modules = R"([{"type": "a.Transformer"}, {"type": "a.Pooling", "path": "/etc"}])"},
            "path is '/etc'"},
        Refused{{.pooling = std::nullopt}, "names 1_Pooling/config.json, which is missing"},
        Refused{{.pooling = R"({"word_embedding_dimension": 9, "pooling_mode_lasttoken": true})"},
                "word_embedding_dimension is 9"},
        Refused{{.pooling = R"({"word_embedding_dimension": 8, "pooling_mode_mean_tokens": true,
                                "pooling_mode_cls_token": true})"},
                "pooling_mode_cls_token is true"},
        Refused{{.pooling = R"({"word_embedding_dimension": 8,
                                "pooling_mode_weightedmean_tokens": true})"},
                "pooling_mode_weightedmean_tokens is true"},
        Refused{{.pooling = R"({"word_embedding_dimension": 8, "pooling_mode_mean_tokens": true,
                                "pooling_mode_lasttoken": true})"},
                "pooling_mode_mean_tokens is true"},
        Refused{{.pooling = R"({"word_embedding_dimension": 8})"}, "pooling_mode_lasttoken"},
        Refused{{.pooling = R"({"word_embedding_dimension": 8, "pooling_mode": "weightedmean"})"},
                "pooling_mode is \"weightedmean\""}));

}  // namespace
}  // namespace penstock
