// Rendered chat templates, as Jinja itself renders them (make_templates.py).
#include <gtest/gtest.h>

#include "model/template/chat_template.h"
#include "tests/support/environment.h"
#include "tests/support/files.h"

namespace penstock {
namespace {

constexpr int64_t kNow = 1735689600 + 12 * 3600;  // as in make_templates.py

std::string GoldenDir() { return SourceFolder() + "/tests/golden/templates"; }

// "output" is the text; "error" the message of raise_exception, or empty for any other error.
void ExpectAsJinja(const ChatTemplate& chat_template, const ChatInput& input,
                   const ChatJson& expected, const std::string& what) {
  const absl::StatusOr<std::string> rendered = chat_template.Render(input);
  if (expected.contains("output")) {
    ASSERT_TRUE(rendered.ok()) << what << "\n" << rendered.status();
    EXPECT_EQ(*rendered, expected["output"].get<std::string>()) << what;
    return;
  }
  ASSERT_FALSE(rendered.ok()) << what << "\nrendered " << *rendered;
  EXPECT_EQ(rendered.status().code(), absl::StatusCode::kInvalidArgument) << what;
  const auto message = expected["error"].get<std::string>();
  if (!message.empty()) {
    EXPECT_EQ(Message(rendered.status()), message) << what;
  }
}

class ModelTemplate : public testing::TestWithParam<const char*> {};

TEST_P(ModelTemplate, RendersAsJinja) {
  const std::string path = GoldenDir() + "/models/" + GetParam();
  const auto chat_template = ChatTemplate::Parse(ReadFile(path + ".jinja"));
  ASSERT_TRUE(chat_template.ok()) << chat_template.status();
  const ChatJson chats = ChatJson::parse(ReadFile(GoldenDir() + "/chats.json"));
  const ChatJson cases = ChatJson::parse(ReadFile(path + ".json"));
  ASSERT_GE(cases.size(), 40u);
  for (const ChatJson& expected : cases) {
    const auto chat = expected["chat"].get<std::string>();
    ChatInput input{.messages = chats["chats"][chat],
                    .tools = expected["tools"].get<bool>() ? chats["tools"] : ChatJson(),
                    .add_generation_prompt = expected["add_generation_prompt"].get<bool>(),
                    .bos_token = expected.value("bos_token", ""),
                    .eos_token = expected.value("eos_token", ""),
                    .extra = expected["extra"],
                    .now_unix_s = kNow};
    ExpectAsJinja(**chat_template, input, expected, chat);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ModelTemplate,
                         testing::Values("chatml", "deepseek_v3", "gemma", "gemma3", "gpt_oss",
                                         "hermes_tools", "llama2", "llama3", "llama31",
                                         "mistral_v01", "mistral_v03", "phi3", "qwen25", "qwen3",
                                         "vicuna", "zephyr"),
                         [](const auto& model) { return std::string(model.param); });

TEST(TemplateFeatures, RenderAsJinja) {
  const ChatJson cases = ChatJson::parse(ReadFile(GoldenDir() + "/features.json"));
  ASSERT_GE(cases.size(), 490u);
  for (const ChatJson& expected : cases) {
    const auto source = expected["template"].get<std::string>();
    const auto chat_template = ChatTemplate::Parse(source);
    // Our parser may refuse a template that Jinja parses and fails to run.
    if (!chat_template.ok() && expected.contains("error")) continue;
    ASSERT_TRUE(chat_template.ok()) << source << "\n" << chat_template.status();
    ExpectAsJinja(**chat_template, {.extra = expected["extra"], .now_unix_s = kNow}, expected,
                  source);
  }
}

}  // namespace
}  // namespace penstock
