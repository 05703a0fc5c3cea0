#include "model/checkpoint/key_means.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <limits>

#include "lab/fake/temp_folder.h"
#include "tests/model/checkpoint/safetensors_writer.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

ModelConfig Config() {
  ModelConfig config;
  config.layers = 2;
  config.kv_heads = 2;
  config.head_dim = 4;
  return config;
}

KeyMeans Means() {
  KeyMeans means;
  for (int layer = 0; layer < 2; ++layer) {
    std::vector<float>& values = means.layers.emplace_back();
    for (int i = 0; i < 8; ++i) values.push_back(static_cast<float>(layer * 100 + i) / 7);
  }
  return means;
}

TEST(KeyMeans, AreReadAsTheyWereWritten) {
  const TempFolder folder;
  for (const std::string& model : {folder.path(), folder.path() + "/m.gguf"}) {
    ASSERT_TRUE(Means().Save(model, Config()).ok());
    const auto read = KeyMeans::Load(model, Config());
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->layers, Means().layers);
    EXPECT_EQ(read->Hash(), Means().Hash());
  }
  EXPECT_TRUE(std::filesystem::exists(folder.path() + "/m.gguf.key_means.safetensors"));
}

TEST(KeyMeans, HashTellsValuesAndLayersApart) {
  KeyMeans other = Means(), swapped = Means();
  other.layers[1][7] += 1;
  std::swap(swapped.layers[0], swapped.layers[1]);
  EXPECT_NE(other.Hash(), Means().Hash());
  EXPECT_NE(swapped.Hash(), Means().Hash());
}

TEST(KeyMeans, BadFilesAreNamed) {
  const TempFolder folder;
  const auto error = [&] { return Message(KeyMeans::Load(folder.path(), Config()).status()); };
  EXPECT_THAT(error(), HasSubstr("`penstock calibrate --model " + folder.path() + "` makes it"));
  const auto write = [&](const std::vector<WrittenTensor>& tensors) {
    folder.Write("key_means.safetensors", SafetensorsBytes(tensors));
  };
  write({{"layers.0", {2, 4}}});
  EXPECT_THAT(error(), HasSubstr("key_means.safetensors: layers.1 is missing"));
  write({{"layers.0", {2, 4}}, {"layers.1", {4, 2}}});
  EXPECT_THAT(error(), HasSubstr("layers.1 has another type or shape than F32 [2, 4]"));
  write({{"layers.0", {2, 4}, "BF16"}, {"layers.1", {2, 4}}});
  EXPECT_THAT(error(), HasSubstr("layers.0 has another type or shape"));
  write({{"layers.0", {2, 4}}, {"layers.1", {2, 4}, "F32", '\xff'}});
  EXPECT_THAT(error(), HasSubstr("layers.1 has a value that is not finite"));
  folder.Write("key_means.safetensors", "short");
  EXPECT_THAT(error(), HasSubstr("key_means.safetensors"));
}

}  // namespace
}  // namespace penstock
