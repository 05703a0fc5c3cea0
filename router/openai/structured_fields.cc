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

  std::string Read(FormatPlace place) {
    if (place == FormatPlace::kTextFormat) {
      ReadTextFormat();
    } else {
      ReadFormat(reader_.Object("response_format"), {"response_format"}, "json_schema");
    }
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

  void ReadTextFormat() {
    const Json* options = reader_.Object("text");
    if (options == nullptr) return;
    FieldReader inner(*options, "text.");
    const Json* format = inner.Object("format");
    if (!inner.status().ok()) return reader_.Note(inner.status());
    ReadFormat(format, {"text", "format"}, nullptr);
  }

  static std::string NameOf(const Keys& keys) { return fmt::format("{}", fmt::join(keys, ".")); }

  // `format` is at `place` in the body. Its name and its schema are in the member `wrapper`;
  // nullptr: in `format` itself.
  void ReadFormat(const Json* format, const Keys& place, const char* wrapper) {
    if (format == nullptr) return;
    const std::string field = NameOf(place);
    FieldReader inner(*format, field + ".");
    const std::string* type = inner.String("type");
    if (!inner.status().ok()) return reader_.Note(inner.status());
    if (type == nullptr)
      return Refuse(field + ".type", "is needed: text, json_object or json_schema");
    if (*type == "text") return;
    if (*type == "json_object") {
      if (Begin(field)) structured_.set_json_object(true);
      return;
    }
    if (*type != "json_schema") {
      return reader_.Note(WithDetail(
          BadField(field + ".type", "is `{}`; this server has text, json_object and json_schema",
                   ShownText(*type)),
          {.reason = "unsupported_parameter"}));
    }
    if (wrapper == nullptr) return ReadJsonSchema(*format, place);
    const Json* named = inner.Object(wrapper);
    if (!inner.status().ok()) return reader_.Note(inner.status());
    if (named == nullptr)
      return Refuse(inner.PathOf(wrapper), "is needed: an object with name and schema");
    Keys deeper = place;
    deeper.emplace_back(wrapper);
    ReadJsonSchema(*named, deeper);
  }

  // `named` is at `place` in the body: {"name", "schema", "strict"}.
  void ReadJsonSchema(const Json& named, Keys place) {
    FieldReader inner(named, NameOf(place) + ".");
    const std::string* name = inner.String("name");
    inner.Bool("strict");  // The schema is enforced in either case.
    const Json* schema = inner.Object("schema");
    if (!inner.status().ok()) return reader_.Note(inner.status());
    const auto fits = [](unsigned char c) { return isalnum(c) != 0 || c == '_' || c == '-'; };
    if (name == nullptr || name->empty() || name->size() > kMaxNameBytes ||
        !std::ranges::all_of(*name, fits)) {
      return Refuse(inner.PathOf("name"),
                    "must have 1 to 64 letters, digits, underscores and hyphens");
    }
    if (schema == nullptr) return Refuse(inner.PathOf("schema"), "is needed: a JSON schema");
    place.emplace_back("schema");
    ReadSchema(place, *schema);
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
    const std::string field = NameOf(keys);
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

std::string ReadStructured(FieldReader& reader, std::string_view text, FormatPlace place,
                           v1::StructuredOutput& structured) {
  return StructuredReader(reader, text, structured).Read(place);
}

}  // namespace penstock
