#include "model/gguf/model_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lab/fake/temp_folder.h"
#include "model/gguf/file/gguf_model.h"
#include "tests/model/gguf/gguf_writer.h"

namespace penstock {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ModelTextTest, NamesOfModels) {
  EXPECT_EQ(DefaultModelName("/models/llama-8b"), "llama-8b");
  EXPECT_EQ(DefaultModelName("models/llama-8b//"), "llama-8b");
  EXPECT_EQ(DefaultModelName("/models/Qwen3-0.6B-Q8_0.gguf"), "Qwen3-0.6B-Q8_0");
  EXPECT_EQ(DefaultModelName("big-00001-of-00003.gguf"), "big");
  EXPECT_EQ(DefaultModelName("big-0001-of-00003.gguf"), "big-0001-of-00003");
  EXPECT_EQ(DefaultModelName("-00001-of-00003.gguf"), "-00001-of-00003");
}

TEST(ModelTextTest, ReadsADirectory) {
  const TempFolder folder;
  folder.Write("config.json", "{1}");
  folder.Write("empty", "");
  EXPECT_EQ(*ReadModelText(folder.path(), "config.json"), "{1}");
  EXPECT_EQ(*ReadModelText(folder.path(), "empty"), "");
  const absl::Status missing = ReadModelText(folder.path(), "tokenizer.json").status();
  EXPECT_TRUE(absl::IsNotFound(missing));
  EXPECT_THAT(Message(missing), HasSubstr(folder.path() + "/tokenizer.json"));
}

TEST(ModelTextTest, ReadsAGgufFile) {
  const TempFolder folder;
  GgufWriter writer = LlamaMetadata();
  writer.Tensor("token_embd.weight", "F32", {10, 32});
  folder.Write("m.gguf", writer.Bytes());
  const std::string path = folder.path() + "/m.gguf";
  EXPECT_THAT(*ReadModelText(path, "config.json"), HasSubstr("\"LlamaForCausalLM\""));
  for (const char* name : {"generation_config.json", "tokenizer.json", "tokenizer_config.json",
                           "chat_template.jinja"}) {
    EXPECT_TRUE(absl::IsNotFound(ReadModelText(path, name).status())) << name;
  }
  folder.Write("m.gguf", "GGUF");
  EXPECT_THAT(Message(ReadModelText(path, "config.json").status()),
              AllOf(HasSubstr(path), HasSubstr("truncated")));
}

TEST(ModelTextTest, SaysThatNothingIsDownloaded) {
  for (const char* model : {"meta-llama/Llama-3.1-8B", "bartowski/model.gguf"}) {
    const absl::Status status = ReadModelText(model, "config.json").status();
    EXPECT_TRUE(absl::IsNotFound(status));
    EXPECT_THAT(Message(status), AllOf(HasSubstr(model), HasSubstr("models are not downloaded")));
  }
  const TempFolder folder;
  folder.Write("model.bin", "");
  EXPECT_THAT(Message(CheckModelExists(folder.path() + "/model.bin")),
              HasSubstr("neither a checkpoint's directory nor a file named *.gguf"));
}

// Part `number` of a split model of three tensors in two files.
GgufWriter Part(int number, int count, int tensors) {
  GgufWriter writer;
  writer.Number("split.no", GgufType::kU16, static_cast<uint16_t>(number))
      .Number("split.count", GgufType::kU16, static_cast<uint16_t>(count))
      .I32s("unused", {})
      .Number("split.tensors.count", GgufType::kI32, int32_t{tensors});
  return writer;
}

class SplitModelTest : public testing::Test {
 protected:
  void Write(const char* part, const GgufWriter& writer) {
    folder_.Write(fmt::format("m-{}-of-00002.gguf", part), writer.Bytes());
  }
  absl::StatusOr<GgufModel> Open(const char* name = "m-00001-of-00002.gguf") {
    return GgufModel::Open(folder_.path() + "/" + name);
  }
  std::string Error() { return Message(Open().status()); }

  const TempFolder folder_;
};

TEST_F(SplitModelTest, TensorsOfAllParts) {
  Write("00001", Part(0, 2, 3).Tensor("b", "F32", {1}, 'b'));
  Write("00002", Part(1, 2, 3).Tensor("c", "F32", {1}, 'c').Tensor("a", "F32", {1}, 'a'));
  const auto model = Open();
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_EQ(model->parts().size(), 2u);
  EXPECT_EQ(model->parts()[1].name, "m-00002-of-00002.gguf");
  ASSERT_EQ(model->contents().tensors.size(), 3u);
  for (const char* name : {"a", "b", "c"}) {
    const GgufTensor* tensor = model->contents().FindTensor(name);
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->part, *name == 'b' ? 0u : 1u);
    EXPECT_EQ(tensor->bytes[0], static_cast<std::byte>(*name));
  }
}

TEST_F(SplitModelTest, PartsMustFit) {
  Write("00001", Part(0, 2, 2).Tensor("a", "F32", {1}));
  EXPECT_TRUE(absl::IsNotFound(Open().status()));
  EXPECT_THAT(Error(), HasSubstr("m-00002-of-00002.gguf"));
  Write("00002", Part(1, 2, 2).Tensor("a", "F32", {1}));
  EXPECT_THAT(Error(), HasSubstr("tensor \"a\" is in m-0000"));
  Write("00002", Part(0, 2, 2).Tensor("b", "F32", {1}));
  EXPECT_THAT(Error(), HasSubstr("m-00002-of-00002.gguf: key \"split.no\" is 0, allowed is 1"));
  Write("00002", Part(1, 3, 2).Tensor("b", "F32", {1}));
  EXPECT_THAT(Error(), HasSubstr("key \"split.count\" is 3, allowed is 2, as in the first file"));
  Write("00002", Part(1, 2, 2));
  EXPECT_THAT(Error(), HasSubstr("\"split.tensors.count\" is 2, allowed is 1"));
  const absl::Status second = Open("m-00002-of-00002.gguf").status();
  EXPECT_THAT(Message(second), HasSubstr("\"split.no\" is 1, allowed is 0: name the first file"));
  folder_.Write("other.gguf", Part(0, 2, 1).Tensor("a", "F32", {1}).Bytes());
  EXPECT_THAT(Message(Open("other.gguf").status()),
              HasSubstr("\"split.count\" is 2, so the first file's name must end in "
                        "-00001-of-00002.gguf"));
  folder_.Write("other.gguf", Part(0, 2000, 1).Bytes());
  EXPECT_THAT(Message(Open("other.gguf").status()),
              HasSubstr("\"split.count\" is 2000, allowed is an integer from 0 to 1024"));
}

}  // namespace
}  // namespace penstock
