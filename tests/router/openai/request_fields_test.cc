#include "router/openai/request_fields.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>

#include "router/openai/request.h"
#include "router/request/structured.h"
#include "router/responses/request.h"

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

// A cell of the table, e.g. "refused unless `false`".
std::string CellText(const RequestField& field, BodyKind kind) {
  std::string text(Word(UseOf(field, kind)));
  if (UseOf(field, kind) != FieldUse::kRefused) return text;
  const Json values = Json::parse(NeutralOf(field, kind));
  for (const Json& value : values) {
    text += (value == values.front() ? " unless `" : ", `") + value.dump() + "`";
  }
  return text;
}

std::string TableText() {
  std::string text =
      "| field | chat | completion | response | note |\n"
      "|---|---|---|---|---|\n";
  for (const RequestField& field : RequestFields()) {
    text += fmt::format("| `{}` | {} | {} | {} | {} |\n", field.name,
                        CellText(field, BodyKind::kChat), CellText(field, BodyKind::kCompletion),
                        CellText(field, BodyKind::kResponse), field.note);
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

std::string_view NameOf(BodyKind kind) {
  switch (kind) {
    case BodyKind::kChat:
      return "chat";
    case BodyKind::kCompletion:
      return "completion";
    case BodyKind::kResponse:
      return "response";
  }
  return "";
}

Json SmallestBody(BodyKind kind) {
  switch (kind) {
    case BodyKind::kChat:
      return {{"messages", {{{"role", "user"}, {"content", "a"}}}}};
    case BodyKind::kCompletion:
      return {{"prompt", "a"}};
    case BodyKind::kResponse:
      return {{"input", "a"}};
  }
  return {};
}

absl::StatusOr<v1::GenerateRequest> Parse(BodyKind kind, const Json& body) {
  if (kind == BodyKind::kResponse) {
    ASSIGN_OR_RETURN(const ResponseRequest request, ParseResponseRequest(body, body.dump()));
    return request.generate;
  }
  ASSIGN_OR_RETURN(const OpenAiRequest request, kind == BodyKind::kChat
                                                    ? ParseChatRequest(body, body.dump())
                                                    : ParseCompletionRequest(body, body.dump()));
  return request.prompts[0];
}

// The smallest body that is accepted, plus one field; with what admission says of its schema.
absl::Status Ask(BodyKind kind, std::string_view name, const Json& value) {
  Json body = SmallestBody(kind);
  body[std::string(name)] = value;
  ASSIGN_OR_RETURN(const v1::GenerateRequest request, Parse(kind, body));
  return GrammarOf(request.structured()).status();
}

// Calls `check` for each field and kind of body with this use.
void ForEach(FieldUse use, const std::function<void(const RequestField&, BodyKind)>& check) {
  for (const RequestField& field : RequestFields()) {
    for (const BodyKind kind : kBodyKinds) {
      if (UseOf(field, kind) != use) continue;
      SCOPED_TRACE(fmt::format("{} in a {}", field.name, NameOf(kind)));
      check(field, kind);
    }
  }
}

TEST(RequestFieldsTest, AreInTheOrderOfTheirNamesAndOnce) {
  const auto fields = RequestFields();
  EXPECT_EQ(std::ranges::adjacent_find(fields, std::ranges::greater_equal(), &RequestField::name),
            fields.end());
}

TEST(RequestFieldsTest, RefusedOnesAreRefusedByNameUnlessTheyAskForNothing) {
  ForEach(FieldUse::kRefused, [](const RequestField& field, BodyKind kind) {
    const Json odd = {{"odd", 4711}};
    EXPECT_THAT(std::string(Ask(kind, field.name, odd).message()),
                HasSubstr(std::string(field.name)));
    EXPECT_TRUE(Ask(kind, field.name, nullptr).ok());
    for (const Json& value : Json::parse(NeutralOf(field, kind))) {
      EXPECT_TRUE(Ask(kind, field.name, value).ok()) << value;
    }
  });
}

TEST(RequestFieldsTest, IgnoredOnesMayHaveAnyValue) {
  ForEach(FieldUse::kIgnored, [](const RequestField& field, BodyKind kind) {
    EXPECT_TRUE(Ask(kind, field.name, {{"odd", 4711}}).ok());
  });
}

// A done field is read, so a value of a wrong type is noticed.
TEST(RequestFieldsTest, DoneOnesAreRead) {
  ForEach(FieldUse::kDone, [](const RequestField& field, BodyKind kind) {
    EXPECT_FALSE(Ask(kind, field.name, {{"odd", {4711}}}).ok());
  });
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
