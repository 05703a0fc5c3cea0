#include "router/openai/structured_fields.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "router/api/json_text.h"
#include "router/request/error_detail.h"

namespace penstock {
namespace {

// The keys of structured_outputs.
constexpr std::string_view kOutputs[] = {"json",    "regex",       "choice",
                                         "grammar", "json_object", "disable_any_whitespace"};
constexpr size_t kMaxNameBytes = 64;
constexpr size_t kMaxTexts = 4096;  // a first bound; the grammar's gate has the limit

// Reads constraints one after the other, and refuses the second.
class StructuredReader {
 public:
  StructuredReader(FieldReader& reader, std::string_view text, v1::StructuredOutput& structured)
      : reader_(reader), text_(text), structured_(structured) {}

  std::string Read() {
    ReadResponseFormat();
    ReadStructuredOutputs();
    for (const char* name : {"guided_json", "json_schema"}) {
      if (const Json* value = Set(reader_, name)) ReadSchema({name}, *value);
    }
    for (const char* name : {"guided_regex", "regex"})
      ReadText(reader_, name, &v1::StructuredOutput::set_regex);
    for (const char* name : {"guided_grammar", "ebnf"})
      ReadText(reader_, name, &v1::StructuredOutput::set_grammar);
    if (const Json* value = Set(reader_, "guided_choice")) ReadChoice("guided_choice", *value);
    if (reader_.Bool("disable_any_whitespace").value_or(false)) structured_.set_compact(true);
    return field_;
  }

 private:
  using Keys = std::vector<std::string_view>;

  // The value of a field that asks for something: an empty list or text does not.
  static const Json* Set(FieldReader& reader, const char* name) {
    const Json* value = reader.Any(name);
    const bool nothing = value == nullptr || (value->is_array() && value->empty()) ||
                         (value->is_string() && value->get_ref<const std::string&>().empty());
    return nothing ? nullptr : value;
  }

  // True if the constraint is the first.
  bool Begin(std::string field) {
    if (field_.empty()) {
      field_ = std::move(field);
      return true;
    }
    reader_.Note(BadField(field, "is set beside {}; at most one constraint may be set", field_));
    return false;
  }

  void Refuse(const std::string& field, std::string_view what) {
    reader_.Note(BadField(field, "{}", what));
  }

  void ReadResponseFormat() {
    const Json* format = reader_.Object("response_format");
    if (format == nullptr) return;
    FieldReader inner(*format, "response_format.");
    const std::string* type = inner.String("type");
    if (!inner.status().ok()) return reader_.Note(inner.status());
    if (type == nullptr)
      return Refuse("response_format.type", "is needed: text, json_object or json_schema");
    if (*type == "text") return;
    if (*type == "json_object") {
      if (Begin("response_format")) structured_.set_json_object(true);
    } else if (*type == "json_schema") {
      ReadJsonSchema(inner);
    } else {
      reader_.Note(WithDetail(
          BadField("response_format.type",
                   "is `{}`; this server has text, json_object and json_schema", ShownText(*type)),
          {.reason = "unsupported_parameter"}));
    }
  }

  void ReadJsonSchema(FieldReader& format) {
    const Json* named = format.Object("json_schema");
    if (!format.status().ok()) return reader_.Note(format.status());
    if (named == nullptr)
      return Refuse("response_format.json_schema", "is needed: an object with name and schema");
    FieldReader inner(*named, "response_format.json_schema.");
    const std::string* name = inner.String("name");
    inner.Bool("strict");  // The schema is enforced in either case.
    const Json* schema = inner.Object("schema");
    if (!inner.status().ok()) return reader_.Note(inner.status());
    const auto fits = [](unsigned char c) { return isalnum(c) != 0 || c == '_' || c == '-'; };
    if (name == nullptr || name->empty() || name->size() > kMaxNameBytes ||
        !std::ranges::all_of(*name, fits)) {
      return Refuse("response_format.json_schema.name",
                    "must have 1 to 64 letters, digits, underscores and hyphens");
    }
    if (schema == nullptr)
      return Refuse("response_format.json_schema.schema", "is needed: a JSON schema");
    ReadSchema({"response_format", "json_schema", "schema"}, *schema);
  }

  void ReadStructuredOutputs() {
    const Json* outputs = reader_.Object("structured_outputs");
    if (outputs == nullptr) return;
    FieldReader inner(*outputs, "structured_outputs.");
    for (const auto& [name, value] : outputs->items()) {
      if (std::ranges::count(kOutputs, name) > 0 || value.is_null() || value == false) continue;
      reader_.Note(WithDetail(
          BadField("structured_outputs." + ShownText(name), "is not supported by this server"),
          {.reason = "unsupported_parameter"}));
    }
    if (const Json* value = Set(inner, "json")) ReadSchema({"structured_outputs", "json"}, *value);
    ReadText(inner, "regex", &v1::StructuredOutput::set_regex);
    ReadText(inner, "grammar", &v1::StructuredOutput::set_grammar);
    if (const Json* value = Set(inner, "choice")) ReadChoice(inner.PathOf("choice"), *value);
    if (inner.Bool("json_object").value_or(false) && Begin(inner.PathOf("json_object")))
      structured_.set_json_object(true);
    if (inner.Bool("disable_any_whitespace").value_or(false)) structured_.set_compact(true);
    if (!inner.status().ok()) reader_.Note(inner.status());
  }

  // A schema is an object, or its text.
  void ReadSchema(const Keys& keys, const Json& value) {
    const std::string field = fmt::format("{}", fmt::join(keys, "."));
    if (!Begin(field)) return;
    if (value.is_string()) return structured_.set_json_schema(value.get<std::string>());
    const auto text = JsonTextAt(text_, keys);
    if (!text) return Refuse(field, "has a key with an escape, which is not supported here");
    structured_.set_json_schema(std::string(*text));
  }

  void ReadText(FieldReader& reader, const char* name,
                void (v1::StructuredOutput::*set)(const std::string&)) {
    if (Set(reader, name) == nullptr) return;
    const std::string* text = reader.String(name);
    if (text != nullptr && Begin(reader.PathOf(name))) (structured_.*set)(*text);
  }

  void ReadChoice(const std::string& field, const Json& value) {
    if (!Begin(field)) return;
    if (!value.is_array() || value.size() > kMaxTexts)
      return Refuse(field, "must be a list of texts");
    for (const Json& text : value) {
      if (!text.is_string()) return Refuse(field, "must be a list of texts");
      structured_.mutable_choice()->add_texts(text.get<std::string>());
    }
  }

  FieldReader& reader_;
  const std::string_view text_;
  v1::StructuredOutput& structured_;
  std::string field_;  // the constraint that was read
};

}  // namespace

std::string ReadStructured(FieldReader& reader, std::string_view text,
                           v1::StructuredOutput& structured) {
  return StructuredReader(reader, text, structured).Read();
}

}  // namespace penstock
