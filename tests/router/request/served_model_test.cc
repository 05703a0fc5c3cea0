#include "router/request/served_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lab/fake/temp_folder.h"
#include "model/template/chat_template.h"
#include "tests/model/gguf/gguf_writer.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A GGUF file has all that a router needs.
TEST(ServedModelTest, IsReadFromAGgufFile) {
  const TempFolder folder;
  GgufWriter writer = LlamaMetadata();
  writer.Tensor("token_embd.weight", "Q8_0", {10, 32})
      .Text("tokenizer.ggml.model", "llama")
      .Texts("tokenizer.ggml.tokens", {"<unk>", "<s>", "</s>", "a", "b", "ab", "\u2581"})
      .F32s("tokenizer.ggml.scores", {0, 0, 0, -2, -3, -1, -4})
      .I32s("tokenizer.ggml.token_type", {2, 3, 3, 1, 1, 1, 1})
      .U32("tokenizer.ggml.bos_token_id", 1)
      .U32("tokenizer.ggml.eos_token_id", 2)
      .Text("tokenizer.chat_template", "{{ bos_token }}{{ messages[0]['content'] }}");
  folder.Write("tiny-Q8_0.gguf", writer.Bytes());
  const auto model = LoadServedModel({.directory = folder.path() + "/tiny-Q8_0.gguf"});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->name, "tiny-Q8_0");
  EXPECT_EQ(model->vocab, 10u);
  EXPECT_EQ(model->max_model_len, 64u);
  EXPECT_THAT(model->eos_token_ids, ElementsAre(2));
  EXPECT_EQ(*model->tokenizer->Encode("ab"), (std::vector<uint32_t>{1, 6, 5}));
  ASSERT_NE(model->chat_template, nullptr);
  const auto text = model->chat_template->Render(
      {.messages = {{{"role", "user"}, {"content", "ab"}}}, .bos_token = "<s>"});
  EXPECT_EQ(*text, "<s>ab");
  const auto longer =
      LoadServedModel({.directory = folder.path() + "/tiny-Q8_0.gguf", .max_model_len = 65});
  EXPECT_THAT(Message(longer.status()), HasSubstr("was trained for 64 tokens"));
}

TEST(ServedModelTest, AFileWithoutTokenizerIsRefused) {
  const TempFolder folder;
  GgufWriter writer = LlamaMetadata();
  writer.Tensor("token_embd.weight", "Q8_0", {10, 32});
  folder.Write("m.gguf", writer.Bytes());
  EXPECT_THAT(Message(LoadServedModel({.directory = folder.path() + "/m.gguf"}).status()),
              HasSubstr("m.gguf has no tokenizer: key \"tokenizer.ggml.model\" is missing"));
}

}  // namespace
}  // namespace penstock
