#include "model/grammar/schema_gate.h"

#include <gmock/gmock.h>

#include "model/grammar/schema_grammar.h"
#include "model/grammar/schema_json.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

SchemaJson Gated(std::string_view schema) {
  const auto gated = GateSchema(schema);
  EXPECT_TRUE(gated.ok()) << schema << ": " << gated.status();
  if (!gated.ok()) return {};
  return SchemaJson::parse(gated->text)["$defs"]["root"];
}

std::string Refusal(std::string_view schema) {
  const auto gated = GateSchema(schema);
  EXPECT_EQ(gated.status().code(), absl::StatusCode::kInvalidArgument) << schema;
  return std::string(gated.status().message());
}

TEST(SchemaGate, RefusesByPointerKeywordAndLimit) {
  const std::pair<std::string, std::string> cases[] = {
      {R"({"not": {}})", "the schema: has the keyword `not`"},
      {R"({"type": "object", "properties": {"a": {"if": {}}}})",
       "/properties/a: has the keyword `if`"},
      {R"({"type": "array", "items": {"type": "string"}, "uniqueItems": true})", "`uniqueItems`"},
      {R"({"type": "object", "patternProperties": {}})", "`patternProperties`"},
      {R"({"type": "number", "multipleOf": 0.5})", "/multipleOf: is not supported"},
      {R"({"type": "strnig"})", "/type: is not one of JSON's types"},
      {R"({"maxlength": 4})", "`maxlength`"},
      {R"({"$ref": "http://example.com/schema"})", "/$ref: is not #, #/$defs/NAME"},
      {R"({"$ref": "#/$defs/a"})", "/$ref: refers to a definition that is not there"},
      {R"({"$ref": "#/$defs/a", "minLength": 2, "$defs": {"a": {}}})", "`$ref` beside `minLength`"},
      {R"({"anyOf": [{"type": "null"}], "type": "string"})", "`anyOf` beside `type`"},
      {R"({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 2}]})",
       "/oneOf: has alternatives 0 and 1"},
      {R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})",
       "/oneOf: has alternatives 0 and 1"},
      {R"({"allOf": [{"properties": {"a": {}}}, {"properties": {"a": {}}}]})",
       "has the property `a`"},
      {R"({"allOf": [{"type": "string"}, {"type": "string"}]})", "only schemas of objects"},
      {R"({"required": ["a"], "additionalProperties": false})", "/required: names `a`"},
      {R"({"type": "string", "maxLength": 2, "minLength": 3})", "maxLength 2 below minLength 3"},
      {R"({"type": "string", "minLength": 33})",
       "/minLength: is 33; it may be a whole number up to 32"},
      {R"({"type": "string", "pattern": "a{0,500}"})", "/pattern: repeats more than 64 times"},
      {R"({"type": "string", "pattern": "(?=a)b"})",
       "/pattern: at byte 2: `=` begins a look-around"},
      {R"({"type": "string", "pattern": "a", "maxLength": 4})", "`pattern` beside a length"},
      {R"({"type": "integer", "minimum": 2.5, "maximum": 2.75})", "allows no integer"},
      {R"({"type": "integer", "minimum": 1e16})", "/minimum: is 1e+16"},
      {R"({"type": "array", "minItems": 257})",
       "/minItems: is 257; it may be a whole number up to 256"},
      {R"({"enum": []})", "/enum: must be a list with values"},
      {R"({"enum": ["a"], "type": "integer"})", "lists no value of its `type`"},
      {R"(false)", "is false, which no answer satisfies"},
      {R"([1])", "is not a schema"},
      {R"({"type": )", "is not JSON"},
  };
  for (const auto& [schema, expected] : cases) EXPECT_THAT(Refusal(schema), HasSubstr(expected));
}

TEST(SchemaGate, RefusesAnswersWithoutAnEnd) {
  EXPECT_THAT(
      Refusal(R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})"),
      HasSubstr("requires itself"));
  EXPECT_THAT(Refusal(R"({"type": "array", "items": {"$ref": "#"}, "minItems": 1})"),
              HasSubstr("requires itself"));
  EXPECT_THAT(Refusal(R"({"$ref": "#"})"), HasSubstr("requires itself"));
  EXPECT_THAT(Refusal(R"({"anyOf": [{"$ref": "#"}, {"type": "null"}]})"),
              HasSubstr("refers to itself"));
  // With a way out.
  Gated(
      R"({"type": "object", "properties": {"a": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["a"]})");
  Gated(R"({"type": "array", "items": {"$ref": "#"}})");
}

TEST(SchemaGate, BoundsDepthNumberAndSize) {
  std::string nested = "{}";
  for (int i = 0; i < 40; ++i) nested.insert(0, R"({"type": "array", "items": )").append("}");
  EXPECT_THAT(Refusal(nested), HasSubstr("is nested deeper than 32"));
  std::string brackets(30'000, '[');
  EXPECT_THAT(Refusal(brackets), HasSubstr("is not JSON"));
  EXPECT_THAT(Refusal(std::string(70'000, ' ')), HasSubstr("has 70000 bytes; the limit is 65536"));
  SchemaJson wide = {{"type", "object"}, {"properties", SchemaJson::object()}};
  for (int i = 0; i < 129; ++i) wide["properties"][fmt::format("p{}", i)] = true;
  EXPECT_THAT(Refusal(wide.dump()), HasSubstr("/properties: has 129 properties; the limit is 128"));
  for (int i = 129; i < 1100; ++i) wide["properties"][fmt::format("p{}", i)] = true;
  EXPECT_THAT(Refusal(wide.dump()), HasSubstr("has an object with over 1024 keys"));
  SchemaJson branches = {{"anyOf", SchemaJson::array()}};
  for (int i = 0; i < 257; ++i) branches["anyOf"].push_back({{"const", i}});
  EXPECT_THAT(Refusal(branches.dump()),
              HasSubstr("/anyOf: has alternative number 257, beyond the limit of 256"));
  SchemaJson values = {{"enum", SchemaJson::array()}};
  for (int i = 0; i < 1001; ++i) values["enum"].push_back(i);
  EXPECT_THAT(Refusal(values.dump()), HasSubstr("/enum: has 1001 values; the limit is 1000"));
}

TEST(SchemaGate, KeepsTheOrderOfProperties) {
  const SchemaJson gated =
      Gated(R"({"type": "object", "properties": {"z": {}, "a": {}, "m": {}}})");
  std::string order;
  for (const auto& [name, schema] : gated["properties"].items()) order += name;
  EXPECT_EQ(order, "zam");
}

TEST(SchemaGate, RewritesWhatTheLibraryWouldRelax) {
  EXPECT_EQ(Gated(R"({"type": ["string", "null"], "title": "t"})"),
            SchemaJson::parse(R"({"anyOf": [{"type": "string"}, {"type": "null"}]})"));
  EXPECT_EQ(
      Gated(R"({"required": ["a"]})"),
      SchemaJson::parse(
          R"({"type": "object", "properties": {"a": {}}, "required": ["a"], "additionalProperties": false})"));
  EXPECT_EQ(
      Gated(
          R"({"allOf": [{"properties": {"a": {}}, "required": ["a"]}, {"type": "object", "properties": {"b": {}}}]})"),
      SchemaJson::parse(
          R"({"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"], "additionalProperties": false})"));
  EXPECT_EQ(Gated(R"({"type": "integer", "exclusiveMinimum": -2.5, "exclusiveMaximum": 7})"),
            SchemaJson::parse(R"({"type": "integer", "minimum": -2, "maximum": 6})"));
  EXPECT_EQ(Gated(R"({"enum": [1, "1", 1.5, null], "type": ["number", "null"]})"),
            SchemaJson::parse(R"({"enum": [1, 1.5, null]})"));
  EXPECT_EQ(Gated(R"({"oneOf": [{"type": "string"}, {"type": "null"}]})"),
            SchemaJson::parse(R"({"anyOf": [{"type": "string"}, {"type": "null"}]})"));
}

TEST(SchemaGate, MarksStringsOfItsOwn) {
  const auto gated = GateSchema(
      R"({"type": "array", "items": {"type": "string", "maxLength": 3}, "description": "mark0"})");
  ASSERT_TRUE(gated.ok()) << gated.status();
  EXPECT_EQ(gated->mark, "markmark");  // not in the schema's own text
  ASSERT_EQ(gated->strings.size(), 1u);
  EXPECT_EQ(gated->strings[0].most, 3);
  EXPECT_THAT(gated->text, HasSubstr(R"({"const":"markmark0"})"));
  const auto grammar = SchemaGrammar(R"({"type": "string", "pattern": "^a+$"})", false);
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  EXPECT_THAT(*grammar, Not(HasSubstr("\"mark0")));
  EXPECT_THAT(*grammar, HasSubstr("mark_string_0 ::="));
}

}  // namespace
}  // namespace penstock
