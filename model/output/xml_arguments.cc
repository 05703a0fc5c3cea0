#include "model/output/xml_arguments.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "model/grammar/grammar_join.h"
#include "model/grammar/pattern_grammar.h"
#include "model/grammar/schema_grammar.h"

namespace penstock {
namespace {

using Json = nlohmann::ordered_json;  // the order of the properties is that of the parameters

constexpr size_t kMaxProperties = 128;
constexpr std::array<const char*, 4> kLimitsOfTexts = {"pattern", "format", "minLength",
                                                       "maxLength"};

std::string Dumped(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool IsListOfTexts(const Json& list) {
  return list.is_array() && !list.empty() &&
         std::ranges::all_of(list, [](const Json& value) { return value.is_string(); });
}

bool IsText(const Json& property) {
  if (!property.is_object()) return false;
  const auto type = property.find("type");
  if (type != property.end()) return *type == "string";
  const auto values = property.find("enum");
  return values != property.end() && IsListOfTexts(*values);
}

absl::Status CheckEnforced(std::string_view schema, const Json& parsed,
                           const CallNotation& notation) {
  RETURN_IF_ERROR(SchemaGrammar(schema, /*compact=*/true).status());
  for (const char* keyword : {"$ref", "anyOf", "oneOf", "allOf"}) {
    if (!parsed.contains(keyword)) continue;
    return InvalidArgument("/: has the keyword `{}`; the notation {} of calls needs `properties`",
                           keyword, notation.name);
  }
  const Json properties = parsed.value("properties", Json::object());
  for (const Json& name : parsed.value("required", Json::array())) {
    if (properties.contains(name.get<std::string>())) continue;
    return InvalidArgument("/required: names `{}`, which is not in /properties", Dumped(name));
  }
  return absl::OkStatus();
}

class XmlWriter {
 public:
  XmlWriter(const Json& schema, const CallNotation& notation, bool enforced)
      : schema_(schema), notation_(notation), enforced_(enforced) {
    stop_ = std::string(notation.value_end);
    stop_.erase(0, stop_.find_first_not_of('\n'));
    stop_.erase(stop_.find_last_not_of('\n') + 1);
  }

  absl::StatusOr<XmlArguments> Write() {
    XmlArguments arguments;
    const Json properties = schema_.value("properties", Json::object());
    if (!properties.is_object() || properties.size() > kMaxProperties) {
      return InvalidArgument("/properties: must be an object of at most {} properties",
                             kMaxProperties);
    }
    std::string root;
    for (const auto& [name, property] : properties.items()) {
      if (name.find_first_of("<>\n") != std::string::npos) {
        return InvalidArgument("/properties: has a name with <, > or a line break");
      }
      ASSIGN_OR_RETURN(const std::string value, Value(name, property));
      if (IsText(property)) arguments.texts.push_back(name);
      const std::string parameter = fmt::format(
          "{} {} {}",
          Literal(std::string(notation_.key_begin) + name + std::string(notation_.key_end)), value,
          Literal(notation_.value_end));
      root += IsRequired(name) ? " " + parameter : fmt::format(" (\"\" | {})", parameter);
    }
    const std::string shared = join_.Rules(roots_);
    for (size_t i = 0; i < roots_.size(); ++i)
      rules_ += fmt::format("json{} ::= {}\n", i, roots_[i]);
    arguments.grammar =
        fmt::format("root ::= {}\n{}{}", root.empty() ? "\"\"" : root, rules_, shared);
    return arguments;
  }

 private:
  bool IsRequired(const std::string& name) const {
    const auto required = schema_.find("required");
    return required != schema_.end() && required->is_array() &&
           std::ranges::find(*required, Json(name)) != required->end();
  }

  absl::StatusOr<std::string> Value(const std::string& name, const Json& property) {
    return IsText(property) ? Text(name, property) : JsonValue(name, property);
  }

  // Text without what ends a value, or one of an enum's.
  absl::StatusOr<std::string> Text(const std::string& name, const Json& property) {
    for (const char* keyword : kLimitsOfTexts) {
      if (!enforced_ || !property.contains(keyword)) continue;
      return InvalidArgument(
          "/properties/{}: has the keyword `{}`, which the notation {} of calls does not support "
          "for "
          "texts",
          name, keyword, notation_.name);
    }
    const auto values = property.find("enum");
    if (values == property.end() || !IsListOfTexts(*values)) {
      const std::string rule = fmt::format("text{}", texts_++);
      rules_ += fmt::format("{} ::= TagDispatch(excludes=({}))\n", rule, Literal(stop_));
      return rule;
    }
    std::string choice;
    for (const Json& value : *values) {
      choice += (choice.empty() ? "(" : " | ") + Literal(value.get<std::string>());
    }
    return choice + ")";
  }

  absl::StatusOr<std::string> JsonValue(const std::string& name, Json property) {
    // References are to definitions of the whole schema.
    for (const char* definitions : {"$defs", "definitions"}) {
      const auto found = schema_.find(definitions);
      if (found != schema_.end() && property.is_object()) property[definitions] = *found;
    }
    const std::string text = Dumped(property);
    const bool refers_to_root = text.find(R"("$ref":"#")") != std::string::npos;
    auto grammar = refers_to_root ? InvalidArgument("/: refers to the whole schema")
                                  : SchemaGrammar(text, /*compact=*/true);
    if (!grammar.ok() && enforced_) {
      return InvalidArgument("/properties/{}{}", name, Message(grammar.status()));
    }
    if (!grammar.ok()) {
      ASSIGN_OR_RETURN(grammar, SchemaGrammar("{}", /*compact=*/true));
    }
    roots_.push_back(join_.Add(*grammar));
    return fmt::format("json{}", roots_.size() - 1);
  }

  const Json& schema_;
  const CallNotation& notation_;
  const bool enforced_;
  std::string stop_;
  GrammarJoin join_;
  std::vector<std::string> roots_;  // of json0, json1, ...
  std::string rules_;
  int texts_ = 0;
};

}  // namespace

absl::StatusOr<XmlArguments> XmlArgumentsOf(std::string_view schema, const CallNotation& notation,
                                            bool enforced) {
  const Json parsed = Json::parse(schema, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return InvalidArgument("/: is not an object");
  if (enforced) RETURN_IF_ERROR(CheckEnforced(schema, parsed, notation));
  return XmlWriter(parsed, notation, enforced).Write();
}

}  // namespace penstock
