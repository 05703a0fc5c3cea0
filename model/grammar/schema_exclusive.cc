#include "model/grammar/schema_exclusive.h"

#include <utility>

namespace penstock {
namespace {

std::string TypeOf(const SchemaJson& node) {
  if (node.contains("type") && node["type"].is_string()) return node["type"].get<std::string>();
  if (node.contains("const")) return JsonTypeName(node["const"]);
  return node.contains("properties") ? "object" : "";
}

// The required properties that may have one value only.
std::vector<std::pair<std::string, SchemaJson>> ConstantsOf(const SchemaJson& node) {
  std::vector<std::pair<std::string, SchemaJson>> constants;
  if (!node.contains("properties") || !node["properties"].is_object()) return constants;
  for (const auto& [name, schema] : node["properties"].items()) {
    const bool needed = node.contains("required") && HasName(node["required"], name);
    if (!needed || !schema.is_object()) continue;
    if (schema.contains("const"))
      constants.emplace_back(name, schema["const"]);
    else if (schema.contains("enum") && schema["enum"].size() == 1)
      constants.emplace_back(name, schema["enum"][0]);
  }
  return constants;
}

bool Exclude(const SchemaJson& a, const SchemaJson& b) {
  if (!a.is_object() || !b.is_object()) return false;
  const std::string type_a = TypeOf(a), type_b = TypeOf(b);
  if (type_a.empty() || type_b.empty()) return false;
  const auto numeric = [](const std::string& type) {
    return type == "integer" || type == "number";
  };
  if (type_a != type_b) return !(numeric(type_a) && numeric(type_b));
  if (a.contains("const") && b.contains("const")) return a["const"] != b["const"];
  if (type_a != "object") return false;
  for (const auto& [name, value] : ConstantsOf(a)) {
    for (const auto& [other, theirs] : ConstantsOf(b)) {
      if (name == other && value != theirs) return true;
    }
  }
  return false;
}

}  // namespace

absl::Status CheckSchemasExclusive(const std::vector<SchemaJson>& schemas,
                                   const std::string& pointer) {
  for (size_t i = 0; i < schemas.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (Exclude(schemas[i], schemas[j])) continue;
      return SchemaFault(pointer,
                         "has alternatives {} and {} that are told apart neither by `type` nor by "
                         "a required property's `const`; use anyOf",
                         j, i);
    }
  }
  return absl::OkStatus();
}

}  // namespace penstock
