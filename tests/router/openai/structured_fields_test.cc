#include "router/openai/structured_fields.h"

#include <gmock/gmock.h>

#include "router/openai/request.h"
#include "router/request/error_detail.h"
#include "router/request/structured.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

struct Read {
  v1::StructuredOutput structured;
  std::string field;
  absl::Status status;
};

Read Parse(const std::string& fields) {
  const std::string text = R"({"prompt": "p", )" + fields + "}";
  const Json body = *ParseJson(text);
  const auto request = ParseCompletionRequest(body, text);
  if (!request.ok()) return {.status = request.status()};
  return {.structured = request->prompts[0].structured(), .field = request->structured_field};
}

TEST(StructuredFields, ReadEveryDialect) {
  const std::string schema = R"({"type": "object", "properties": {"z": {}, "a": {}}})";
  const std::pair<std::string, std::string> schemas[] = {
      {R"("response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema": )" +
           schema + "}}",
       "response_format.json_schema.schema"},
      {R"("structured_outputs": {"json": )" + schema + "}", "structured_outputs.json"},
      {R"("guided_json": )" + schema, "guided_json"},
      {R"("json_schema": )" + Json(schema).dump(), "json_schema"}};
  for (const auto& [fields, name] : schemas) {
    const Read read = Parse(fields);
    ASSERT_TRUE(read.status.ok()) << fields << read.status;
    EXPECT_EQ(read.structured.json_schema(), schema) << fields;  // its keys are not sorted
    EXPECT_EQ(read.field, name);
  }
  EXPECT_TRUE(Parse(R"("response_format": {"type": "json_object"})").structured.json_object());
  EXPECT_TRUE(
      Parse(R"("structured_outputs": {"json_object": true, "disable_any_whitespace": true})")
          .structured.compact());
  EXPECT_EQ(Parse(R"("guided_regex": "a+")").structured.regex(), "a+");
  EXPECT_EQ(Parse(R"("regex": "a+")").structured.regex(), "a+");
  EXPECT_EQ(Parse(R"("structured_outputs": {"regex": "a+"})").field, "structured_outputs.regex");
  EXPECT_EQ(Parse(R"("ebnf": "root ::= \"a\"")").structured.grammar(), "root ::= \"a\"");
  EXPECT_EQ(Parse(R"("guided_grammar": "root ::= \"a\"")").structured.grammar(), "root ::= \"a\"");
  EXPECT_EQ(Parse(R"("guided_choice": ["yes", "no"])").structured.choice().texts_size(), 2);
  EXPECT_TRUE(Parse(R"("guided_json": {"type": "null"}, "disable_any_whitespace": true)")
                  .structured.compact());
}

TEST(StructuredFields, MayAskForNothing) {
  for (const char* fields :
       {R"("response_format": {"type": "text"})", R"("guided_choice": [])", R"("regex": "")",
        R"("guided_json": null)", R"("structured_outputs": {})"}) {
    const Read read = Parse(fields);
    EXPECT_TRUE(read.status.ok()) << fields << read.status;
    EXPECT_EQ(read.structured.constraint_case(), v1::StructuredOutput::CONSTRAINT_NOT_SET)
        << fields;
    EXPECT_EQ(read.field, "");
  }
}

TEST(StructuredFields, AreRefusedByName) {
  const std::pair<std::string, std::string> cases[] = {
      {R"("response_format": {"type": "structural_tag"})",
       "response_format.type is `structural_tag`"},
      {R"("response_format": {})", "response_format.type is needed"},
      {R"("response_format": {"type": "json_schema"})", "response_format.json_schema is needed"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"schema": {}}})",
       "response_format.json_schema.name must have"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}})",
       "response_format.json_schema.name must have"},
      {R"("response_format": {"type": "json_schema", "json_schema": {"name": "n"}})",
       "response_format.json_schema.schema is needed"},
      {R"("guided_regex": "a", "guided_choice": ["b"])",
       "guided_choice is set beside guided_regex"},
      {R"("guided_json": {}, "response_format": {"type": "json_object"})",
       "guided_json is set beside response_format"},
      {R"("guided_choice": ["a", 1])", "guided_choice must be a list of texts"},
      {R"("structured_outputs": {"structural_tag": {"a": 1}})",
       "structured_outputs.structural_tag is not supported"},
      {R"("structured_outputs": {"whitespace_pattern": " "})",
       "structured_outputs.whitespace_pattern is not supported"},
      {R"("guided_whitespace_pattern": " ")", "guided_whitespace_pattern is not supported"},
  };
  for (const auto& [fields, expected] : cases) {
    const Read read = Parse(fields);
    EXPECT_EQ(read.status.code(), absl::StatusCode::kInvalidArgument) << fields;
    EXPECT_THAT(std::string(read.status.message()), HasSubstr(expected));
  }
}

TEST(StructuredFields, BecomeGrammars) {
  v1::StructuredOutput structured;
  EXPECT_EQ(*GrammarOf(structured), "");
  structured.set_regex("[ab]{2}");
  EXPECT_THAT(*GrammarOf(structured), HasSubstr("root ::="));
  structured.set_json_schema(R"({"not": {}})");
  const absl::Status refused = GrammarOf(structured).status();
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("structured is not supported: the schema: has the keyword `not`"));
  EXPECT_EQ(DetailOf(refused).field, kStructuredField);
}

}  // namespace
}  // namespace penstock
