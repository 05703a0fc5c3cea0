#include "model/grammar/schema_gate.h"

#include <algorithm>

#include "model/grammar/schema_ends.h"
#include "model/grammar/schema_exclusive.h"
#include "model/grammar/schema_json.h"
#include "model/grammar/schema_scalars.h"

namespace penstock {
namespace {

using Limits = SchemaLimits;

constexpr std::string_view kAnnotations[] = {
    "title",    "description",      "default",         "examples",     "example",
    "$comment", "deprecated",       "readOnly",        "writeOnly",    "$schema",
    "$id",      "contentMediaType", "contentEncoding", "discriminator"};
constexpr std::string_view kTypes[] = {"string", "integer", "number", "boolean",
                                       "null",   "object",  "array"};

// The keywords that say something of values of one type.
struct TypeKeywords {
  std::string_view type;
  std::vector<std::string_view> keywords;
};
const std::vector<TypeKeywords>& KeywordsOfTypes() {
  static const std::vector<TypeKeywords> kKeywords = {
      {"object", {"properties", "required", "additionalProperties"}},
      {"array", {"items", "prefixItems", "minItems", "maxItems"}},
      {"string", {"minLength", "maxLength", "pattern", "format"}},
      {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}}};
  return kKeywords;
}
bool BelongsTo(std::string_view keyword, std::string_view type) {
  const std::string_view group = type == "integer" ? "number" : type;
  return std::ranges::any_of(KeywordsOfTypes(), [&](const TypeKeywords& of) {
    return of.type == group && std::ranges::count(of.keywords, keyword) > 0;
  });
}

class Gate {
 public:
  explicit Gate(const SchemaJson& root, GatedSchema& out) : root_(root), out_(out) {}

  absl::StatusOr<SchemaJson> Run() {
    ASSIGN_OR_RETURN(SchemaJson top, Node(root_, "", 0));
    SchemaJson definitions = SchemaJson::object();
    definitions["root"] = std::move(top);
    // Only definitions that something refers to; further ones may turn up on the way.
    for (size_t i = 0; i < wanted_.size(); ++i) {
      const std::string pointer = wanted_[i];
      ASSIGN_OR_RETURN(SchemaJson node,
                       Node(root_.at(SchemaJson::json_pointer(pointer)), pointer, 0));
      definitions[NameOf(i)] = std::move(node);
    }
    RETURN_IF_ERROR(CheckSchemaEnds(definitions));
    return SchemaJson({{"$defs", std::move(definitions)}, {"$ref", "#/$defs/root"}});
  }

 private:
  static std::string NameOf(size_t definition) { return fmt::format("d{}", definition); }

  absl::StatusOr<SchemaJson> Node(const SchemaJson& node, const std::string& pointer, int depth) {
    if (depth > Limits::kDepth)
      return SchemaFault(pointer, "is nested deeper than {}, the limit", Limits::kDepth);
    if (++schemas_ > Limits::kSchemas)
      return SchemaFault(pointer, "is schema number {}, beyond the limit", schemas_);
    if (node.is_boolean() && node.get<bool>()) return SchemaJson::object();
    if (node.is_boolean()) return SchemaFault(pointer, "is false, which no answer satisfies");
    if (!node.is_object()) return SchemaFault(pointer, "is not a schema: an object or true");
    SchemaJson said = SchemaJson::object();
    for (const auto& [keyword, value] : node.items()) {
      if (HasName(kAnnotations, keyword)) continue;
      if (pointer.empty() && (keyword == "$defs" || keyword == "definitions")) continue;
      said[keyword] = value;
    }
    for (const char* head : {"$ref", "anyOf", "oneOf", "allOf"}) {
      if (!said.contains(head)) continue;
      if (said.size() > 1)
        return SchemaFault(pointer, "has `{}` beside `{}`; only annotations may stand there", head,
                           OtherThan(said, head));
      return Combined(said, pointer + "/" + head, head, depth);
    }
    if (said.contains("enum") || said.contains("const")) return Values(said, pointer);
    return Typed(said, pointer, depth);
  }

  static std::string OtherThan(const SchemaJson& said, std::string_view head) {
    for (const auto& [keyword, value] : said.items()) {
      if (keyword != head) return keyword;
    }
    return "";
  }

  absl::StatusOr<SchemaJson> Combined(const SchemaJson& said, const std::string& pointer,
                                      std::string_view head, int depth) {
    const SchemaJson& value = said.front();
    if (head == "$ref") return Reference(value, pointer);
    if (!value.is_array() || value.empty())
      return SchemaFault(pointer, "must be a list of schemas");
    if (head == "allOf") return Merged(value, pointer, depth);
    if (head == "oneOf") RETURN_IF_ERROR(CheckExclusive(value, pointer));
    return AnyOf(value, pointer, depth);
  }

  absl::StatusOr<SchemaJson> AnyOf(const SchemaJson& list, const std::string& pointer, int depth) {
    branches_ += static_cast<int>(list.size());
    if (branches_ > Limits::kBranches)
      return SchemaFault(pointer, "has alternative number {}, beyond the limit of {}", branches_,
                         Limits::kBranches);
    SchemaJson branches = SchemaJson::array();
    for (size_t i = 0; i < list.size(); ++i) {
      ASSIGN_OR_RETURN(SchemaJson branch,
                       Node(list[i], fmt::format("{}/{}", pointer, i), depth + 1));
      branches.push_back(std::move(branch));
    }
    return SchemaJson({{"anyOf", std::move(branches)}});
  }

  // ---------------------------------------------------------------- references

  absl::StatusOr<std::string> TargetOf(const SchemaJson& reference,
                                       const std::string& pointer) const {
    if (!reference.is_string()) return SchemaFault(pointer, "must be a string");
    const auto text = reference.get<std::string>();
    if (text == "#") return std::string();
    const bool known = text.starts_with("#/$defs/") || text.starts_with("#/definitions/");
    const std::string target = text.substr(text.empty() ? 0 : 1);
    if (!known || std::ranges::count(target, '/') != 2 || target.find('%') != std::string::npos) {
      return SchemaFault(pointer, "is not #, #/$defs/NAME or #/definitions/NAME");
    }
    const size_t name = target.find('/', 1) + 1;
    const auto group = root_.find(target.substr(1, name - 2));
    std::string key = target.substr(name);
    for (const auto& [coded, plain] : {std::pair("~1", "/"), std::pair("~0", "~")}) {
      for (size_t at = key.find(coded); at != std::string::npos; at = key.find(coded, at + 1))
        key.replace(at, 2, plain);
    }
    if (group == root_.end() || !group->is_object() || !group->contains(key))
      return SchemaFault(pointer, "refers to a definition that is not there");
    return target;
  }

  absl::StatusOr<SchemaJson> Reference(const SchemaJson& value, const std::string& pointer) {
    ASSIGN_OR_RETURN(const std::string target, TargetOf(value, pointer));
    if (target.empty()) return SchemaJson({{"$ref", "#/$defs/root"}});
    const auto found = std::ranges::find(wanted_, target);
    const auto index = static_cast<size_t>(found - wanted_.begin());
    if (found == wanted_.end()) wanted_.push_back(target);
    return SchemaJson({{"$ref", "#/$defs/" + NameOf(index)}});
  }

  // The schema itself, behind a reference to it.
  absl::StatusOr<SchemaJson> Resolved(const SchemaJson& node, const std::string& pointer) const {
    if (!node.is_object() || !node.contains("$ref")) return node;
    ASSIGN_OR_RETURN(const std::string target, TargetOf(node["$ref"], pointer));
    return root_.at(SchemaJson::json_pointer(target));
  }

  // ---------------------------------------------------------------- allOf, oneOf

  absl::StatusOr<SchemaJson> Merged(const SchemaJson& list, const std::string& pointer, int depth) {
    if (list.size() == 1) return Node(list[0], pointer + "/0", depth + 1);
    SchemaJson merged({{"type", "object"},
                       {"properties", SchemaJson::object()},
                       {"required", SchemaJson::array()}});
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string path = fmt::format("{}/{}", pointer, i);
      ASSIGN_OR_RETURN(const SchemaJson part, Resolved(list[i], path));
      if (!part.is_object()) return SchemaFault(path, "is not an object's schema");
      for (const auto& [keyword, value] : part.items()) {
        if (HasName(kAnnotations, keyword) || (keyword == "type" && value == "object")) continue;
        if (keyword != "properties" && keyword != "required")
          return SchemaFault(
              path,
              "has `{}`; only schemas of objects with `properties` and `required` can be merged",
              keyword);
        RETURN_IF_ERROR(MergeInto(merged, keyword, value, path));
      }
    }
    return Node(merged, pointer, depth + 1);
  }

  static absl::Status MergeInto(SchemaJson& merged, const std::string& keyword,
                                const SchemaJson& value, const std::string& path) {
    if (keyword == "required") {
      if (!value.is_array()) return SchemaFault(path, "has a `required` that is not a list");
      for (const SchemaJson& name : value) merged["required"].push_back(name);
      return absl::OkStatus();
    }
    if (!value.is_object()) return SchemaFault(path, "has `properties` that are not an object");
    for (const auto& [name, schema] : value.items()) {
      if (merged["properties"].contains(name))
        return SchemaFault(path, "has the property `{}`, as another schema of `allOf` has", name);
      merged["properties"][name] = schema;
    }
    return absl::OkStatus();
  }

  // `oneOf` means exactly one, a grammar means at least one: they are the same where no value fits
  // two.
  absl::Status CheckExclusive(const SchemaJson& list, const std::string& pointer) const {
    if (list.size() > static_cast<size_t>(Limits::kBranches))
      return SchemaFault(pointer, "has {} alternatives; the limit is {}", list.size(),
                         Limits::kBranches);
    std::vector<SchemaJson> branches;
    for (size_t i = 0; i < list.size(); ++i) {
      ASSIGN_OR_RETURN(SchemaJson branch, Resolved(list[i], fmt::format("{}/{}", pointer, i)));
      branches.push_back(std::move(branch));
    }
    return CheckSchemasExclusive(branches, pointer);
  }

  // ---------------------------------------------------------------- values

  absl::StatusOr<SchemaJson> Values(const SchemaJson& said, const std::string& pointer) {
    for (const auto& [keyword, value] : said.items()) {
      if (keyword != "enum" && keyword != "const" && keyword != "type")
        return SchemaFault(pointer, "has `{}` beside listed values", keyword);
    }
    if (said.contains("enum") && said.contains("const"))
      return SchemaFault(pointer, "has `enum` beside `const`");
    SchemaJson listed = said.contains("enum") ? said["enum"] : SchemaJson::array({said["const"]});
    if (!listed.is_array() || listed.empty())
      return SchemaFault(pointer + "/enum", "must be a list with values");
    if (listed.size() > Limits::kValues)
      return SchemaFault(pointer + "/enum", "has {} values; the limit is {}", listed.size(),
                         Limits::kValues);
    SchemaJson values = SchemaJson::array();
    ASSIGN_OR_RETURN(const std::vector<std::string> types, TypesOf(said, pointer));
    for (const SchemaJson& value : listed) {
      const std::string type = JsonTypeName(value);
      if (types.empty() || HasName(types, type) || (type == "integer" && HasName(types, "number")))
        values.push_back(value);
    }
    if (values.empty()) return SchemaFault(pointer, "lists no value of its `type`");
    return SchemaJson({{"enum", std::move(values)}});
  }

  // ---------------------------------------------------------------- types

  static absl::StatusOr<std::vector<std::string>> TypesOf(const SchemaJson& said,
                                                          const std::string& pointer) {
    std::vector<std::string> types;
    if (!said.contains("type")) return types;
    const SchemaJson listed =
        said["type"].is_array() ? said["type"] : SchemaJson::array({said["type"]});
    for (const SchemaJson& type : listed) {
      if (!type.is_string() || !HasName(kTypes, type.get<std::string>()))
        return SchemaFault(pointer + "/type", "is not one of JSON's types");
      types.push_back(type.get<std::string>());
    }
    if (types.empty()) return SchemaFault(pointer + "/type", "is empty");
    return types;
  }

  absl::StatusOr<SchemaJson> Typed(const SchemaJson& said, const std::string& pointer, int depth) {
    for (const auto& [keyword, value] : said.items()) {
      const auto is_of = [&keyword = keyword](std::string_view type) {
        return BelongsTo(keyword, type);
      };
      const bool known = keyword == "type" || std::ranges::any_of(kTypes, is_of);
      if (!known)
        return SchemaFault(pointer, "has the keyword `{}`, which is not supported", keyword);
    }
    ASSIGN_OR_RETURN(std::vector<std::string> types, TypesOf(said, pointer));
    if (types.empty() && said.empty()) return SchemaJson::object();  // anything
    if (types.empty()) {
      for (const TypeKeywords& of : KeywordsOfTypes()) {
        if (std::ranges::any_of(of.keywords,
                                [&](std::string_view keyword) { return said.contains(keyword); }))
          types.emplace_back(of.type);
      }
    }
    branches_ += static_cast<int>(types.size()) - 1;
    if (branches_ > Limits::kBranches)
      return SchemaFault(pointer, "has alternative number {}, beyond the limit of {}", branches_,
                         Limits::kBranches);
    SchemaJson branches = SchemaJson::array();
    for (const std::string& type : types) {
      ASSIGN_OR_RETURN(SchemaJson branch, OfType(type, said, pointer, depth));
      branches.push_back(std::move(branch));
    }
    if (branches.size() == 1) return branches[0];
    return SchemaJson({{"anyOf", std::move(branches)}});
  }

  absl::StatusOr<SchemaJson> OfType(const std::string& type, const SchemaJson& said,
                                    const std::string& pointer, int depth) {
    if (type == "object") return Object(said, pointer, depth);
    if (type == "array") return Array(said, pointer, depth);
    if (type == "string") return StringSchema(said, pointer, out_);
    if (type == "integer") return IntegerSchema(said, pointer);
    if (type == "number") return NumberSchema(said, pointer);
    return SchemaJson({{"type", type}});
  }

  absl::StatusOr<SchemaJson> Object(const SchemaJson& said, const std::string& pointer, int depth) {
    SchemaJson properties = said.value("properties", SchemaJson::object());
    SchemaJson required = said.value("required", SchemaJson::array());
    const SchemaJson others = said.value("additionalProperties", SchemaJson(true));
    if (!properties.is_object()) return SchemaFault(pointer + "/properties", "must be an object");
    if (!required.is_array()) return SchemaFault(pointer + "/required", "must be a list");
    for (const SchemaJson& name : required) {
      if (!name.is_string()) return SchemaFault(pointer + "/required", "must be a list of names");
      if (properties.contains(name.get<std::string>())) continue;
      if (others == false)
        return SchemaFault(pointer + "/required",
                           "names `{}`, which is no property, and additionalProperties is false",
                           name.get<std::string>());
      properties[name.get<std::string>()] = others;
    }
    if (properties.size() > Limits::kProperties)
      return SchemaFault(pointer + "/properties", "has {} properties; the limit is {}",
                         properties.size(), Limits::kProperties);
    SchemaJson out({{"type", "object"}});
    if (properties.empty()) {
      out["additionalProperties"] = others;
      if (others.is_object()) {
        ASSIGN_OR_RETURN(out["additionalProperties"],
                         Node(others, pointer + "/additionalProperties", depth + 1));
      } else if (!others.is_boolean()) {
        return SchemaFault(pointer + "/additionalProperties", "is not a schema");
      }
      return out;
    }
    out["properties"] = SchemaJson::object();
    for (const auto& [name, schema] : properties.items()) {
      ASSIGN_OR_RETURN(out["properties"][name],
                       Node(schema, fmt::format("{}/properties/{}", pointer, name), depth + 1));
    }
    out["required"] = std::move(required);
    // A further property could have the name of one of these, and JSON readers take the last.
    out["additionalProperties"] = false;
    return out;
  }

  absl::StatusOr<SchemaJson> Array(const SchemaJson& said, const std::string& pointer, int depth) {
    const SchemaJson prefix = said.value("prefixItems", SchemaJson::array());
    if (!prefix.is_array() || prefix.size() > static_cast<size_t>(Limits::kItems))
      return SchemaFault(pointer + "/prefixItems", "must be a list of up to {} schemas",
                         Limits::kItems);
    ASSIGN_OR_RETURN(const int least, SchemaCount(said, "minItems", 0, Limits::kItems, pointer));
    ASSIGN_OR_RETURN(const int most, SchemaCount(said, "maxItems", -1, Limits::kItems, pointer));
    if (most >= 0 && most < least)
      return SchemaFault(pointer, "has maxItems {} below minItems {}", most, least);
    SchemaJson out({{"type", "array"}});
    const SchemaJson items = said.value("items", SchemaJson(true));
    if (prefix.empty()) {
      if (items == false) {
        if (least > 0) return SchemaFault(pointer, "has minItems {} and no items", least);
        out["maxItems"] = 0;
        return out;
      }
      ASSIGN_OR_RETURN(out["items"], Node(items, pointer + "/items", depth + 1));
      if (least > 0) out["minItems"] = least;
      if (most >= 0) out["maxItems"] = most;
      return out;
    }
    return Tuple(prefix, items, {least, most}, pointer, depth);
  }

  // All of a tuple's items, and nothing behind them: every such list satisfies minItems up to their
  // number.
  absl::StatusOr<SchemaJson> Tuple(const SchemaJson& prefix, const SchemaJson& items,
                                   std::pair<int, int> limits, const std::string& pointer,
                                   int depth) {
    const auto size = static_cast<int>(prefix.size());
    if (limits.first > size)
      return SchemaFault(pointer,
                         "has minItems {} and prefixItems {}; more than those are not supported",
                         limits.first, size);
    if (limits.second >= 0 && limits.second < size)
      return SchemaFault(pointer, "has maxItems {} below the {} of prefixItems", limits.second,
                         size);
    if (items.is_object())
      return SchemaFault(pointer,
                         "has `items` behind `prefixItems`, which is supported only as false");
    SchemaJson out({{"type", "array"},
                    {"prefixItems", SchemaJson::array()},
                    {"items", false},
                    {"minItems", size}});
    for (int i = 0; i < size; ++i) {
      ASSIGN_OR_RETURN(SchemaJson item,
                       Node(prefix[static_cast<size_t>(i)],
                            fmt::format("{}/prefixItems/{}", pointer, i), depth + 1));
      out["prefixItems"].push_back(std::move(item));
    }
    return out;
  }

  const SchemaJson& root_;
  GatedSchema& out_;
  std::vector<std::string> wanted_;  // JSON pointers of definitions
  int schemas_ = 0;
  int branches_ = 0;
};

}  // namespace

absl::StatusOr<GatedSchema> GateSchema(std::string_view schema) {
  ASSIGN_OR_RETURN(const SchemaJson root, ParseSchemaJson(schema, Limits::kBytes));
  GatedSchema out{.mark = "mark"};
  while (schema.find(out.mark) != std::string_view::npos) out.mark += "mark";
  ASSIGN_OR_RETURN(const SchemaJson gated, Gate(root, out).Run());
  out.text = gated.dump();
  return out;
}

}  // namespace penstock
