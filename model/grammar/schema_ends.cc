#include "model/grammar/schema_ends.h"

#include <set>

namespace penstock {
namespace {

using Names = std::set<std::string>;

std::string NameOf(const SchemaJson& reference) {
  const auto text = reference.get<std::string>();
  return text.substr(text.rfind('/') + 1);
}

// True if some value of the schema has an end, given the definitions that have.
bool Ends(const SchemaJson& node, const Names& ending) {
  if (node.contains("$ref")) return ending.contains(NameOf(node["$ref"]));
  if (node.contains("anyOf")) {
    return std::ranges::any_of(node["anyOf"],
                               [&](const SchemaJson& branch) { return Ends(branch, ending); });
  }
  if (node.contains("properties")) {
    return std::ranges::all_of(node["required"], [&](const SchemaJson& name) {
      return Ends(node["properties"][name.get<std::string>()], ending);
    });
  }
  if (node.contains("prefixItems")) {
    return std::ranges::all_of(node["prefixItems"],
                               [&](const SchemaJson& item) { return Ends(item, ending); });
  }
  return !node.contains("minItems") || Ends(node["items"], ending);
}

// True if the schema is one of `above` without a character between.
bool IsItself(const SchemaJson& node, const SchemaJson& definitions, const Names& above) {
  if (node.contains("$ref")) {
    const std::string name = NameOf(node["$ref"]);
    if (above.contains(name)) return true;
    Names further = above;
    further.insert(name);
    return IsItself(definitions[name], definitions, further);
  }
  if (!node.contains("anyOf")) return false;
  return std::ranges::any_of(node["anyOf"], [&](const SchemaJson& branch) {
    return IsItself(branch, definitions, above);
  });
}

}  // namespace

absl::Status CheckSchemaEnds(const SchemaJson& definitions) {
  Names ending;
  for (size_t before = definitions.size() + 1; before != ending.size();) {
    before = ending.size();
    for (const auto& [name, node] : definitions.items()) {
      if (Ends(node, ending)) ending.insert(name);
    }
  }
  if (ending.size() < definitions.size()) {
    return InvalidArgument(
        "the schema has a definition that requires itself, so no answer to it ends");
  }
  for (const auto& [name, node] : definitions.items()) {
    if (IsItself(node, definitions, {name}))
      return InvalidArgument(
          "the schema has a definition that refers to itself with nothing around");
  }
  return absl::OkStatus();
}

}  // namespace penstock
