#include "router/openai/request_fields.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "router/openai/request.h"
#include "router/request/structured.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

std::string_view Word(FieldUse use) {
  switch (use) {
    case FieldUse::kDone:
      return "done";
    case FieldUse::kRefused:
      return "refused";
    case FieldUse::kIgnored:
      return "ignored";
  }
  return "";
}

std::string NeutralText(FieldUse use, std::string_view neutral) {
  if (use != FieldUse::kRefused) return "";
  std::string text;
  for (const Json& value : Json::parse(neutral)) {
    text += (text.empty() ? " unless `" : ", `") + value.dump() + "`";
  }
  return text;
}

std::string TableText() {
  std::string text =
      "| field | chat | completion | note |\n"
      "|---|---|---|---|\n";
  for (const RequestField& field : RequestFields()) {
    text += fmt::format("| `{}` | {}{} | {}{} | {} |\n", field.name, Word(field.chat),
                        NeutralText(field.chat, field.neutral), Word(field.completion),
                        NeutralText(field.completion, field.neutral_completion), field.note);
  }
  return text;
}

std::string Page() {
  return std::string(std::getenv("PENSTOCK_SOURCE_DIR")) + "/docs/api-fields.md";
}

std::string Read(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The smallest body that is accepted, plus one field; with what admission says of its schema.
absl::Status Ask(BodyKind kind, std::string_view name, const Json& value) {
  Json body = kind == BodyKind::kChat ? Json{{"messages", {{{"role", "user"}, {"content", "a"}}}}}
                                      : Json{{"prompt", "a"}};
  body[std::string(name)] = value;
  const auto request = kind == BodyKind::kChat ? ParseChatRequest(body, body.dump())
                                               : ParseCompletionRequest(body, body.dump());
  if (!request.ok()) return request.status();
  return GrammarOf(request->prompts[0].structured()).status();
}

TEST(RequestFieldsTest, AreInTheOrderOfTheirNamesAndOnce) {
  const auto fields = RequestFields();
  EXPECT_EQ(std::ranges::adjacent_find(fields, std::ranges::greater_equal(), &RequestField::name),
            fields.end());
}

TEST(RequestFieldsTest, RefusedOnesAreRefusedByNameUnlessTheyAskForNothing) {
  for (const RequestField& field : RequestFields()) {
    for (const BodyKind kind : {BodyKind::kChat, BodyKind::kCompletion}) {
      const bool chat = kind == BodyKind::kChat;
      SCOPED_TRACE(fmt::format("{} in a {}", field.name, chat ? "chat" : "completion"));
      if ((chat ? field.chat : field.completion) != FieldUse::kRefused) continue;
      const Json odd = {{"odd", 4711}};
      EXPECT_THAT(std::string(Ask(kind, field.name, odd).message()),
                  HasSubstr(std::string(field.name)));
      EXPECT_TRUE(Ask(kind, field.name, nullptr).ok());
      for (const Json& value : Json::parse(chat ? field.neutral : field.neutral_completion)) {
        EXPECT_TRUE(Ask(kind, field.name, value).ok()) << value;
      }
    }
  }
}

TEST(RequestFieldsTest, IgnoredOnesMayHaveAnyValue) {
  for (const RequestField& field : RequestFields()) {
    if (field.chat == FieldUse::kIgnored) {
      EXPECT_TRUE(Ask(BodyKind::kChat, field.name, {{"odd", 4711}}).ok()) << field.name;
    }
    if (field.completion == FieldUse::kIgnored) {
      EXPECT_TRUE(Ask(BodyKind::kCompletion, field.name, {{"odd", 4711}}).ok()) << field.name;
    }
  }
}

// A done field is read, so a value of a wrong type is noticed.
TEST(RequestFieldsTest, DoneOnesAreRead) {
  const Json odd = {{"odd", {4711}}};
  for (const RequestField& field : RequestFields()) {
    if (field.chat == FieldUse::kDone) {
      EXPECT_FALSE(Ask(BodyKind::kChat, field.name, odd).ok()) << field.name;
    }
    if (field.completion == FieldUse::kDone) {
      EXPECT_FALSE(Ask(BodyKind::kCompletion, field.name, odd).ok()) << field.name;
    }
  }
}

TEST(RequestFieldsTest, ThePageHasTheTable) {
  const std::string page = Read(Page());
  const size_t start = page.find("| field |");
  ASSERT_NE(start, std::string::npos) << Page();
  if (std::getenv("PENSTOCK_WRITE_PAGE") != nullptr) {
    std::ofstream(Page()) << page.substr(0, start) + TableText();
  }
  EXPECT_EQ(Read(Page()).substr(start), TableText())
      << "write it with PENSTOCK_WRITE_PAGE=1 " << ::testing::internal::GetArgvs()[0];
}

}  // namespace
}  // namespace penstock
