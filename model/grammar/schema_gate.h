#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace penstock {

// A schema that XGrammar's converter treats exactly as JSON Schema says, or more narrowly. `text`
// has a constant in the place of each string that it would treat otherwise: the k-th of `strings`
// is the grammar of the constant "<mark>k".
struct GatedSchema {
  struct StringRule {
    std::string expression;  // with its quotes; empty: any characters, as many as is said below
    int least = 0;
    int most = -1;  // -1: without limit
    bool operator==(const StringRule&) const = default;
  };
  std::string text;
  std::string mark;
  std::vector<StringRule> strings;
};

struct SchemaLimits {
  static constexpr size_t kBytes = 64 << 10;
  static constexpr int kDepth = 32;           // schemas within schemas
  static constexpr int kSchemas = 2000;       // in all, references counted once
  static constexpr int kBranches = 256;       // of anyOf and oneOf, in all
  static constexpr size_t kProperties = 128;  // of an object
  static constexpr size_t kValues = 1000;     // of an enum
  static constexpr int kItems = 256;          // of minItems and maxItems
  static constexpr int kMinLength = 32;
  static constexpr int kMaxLength = 100'000;
};

// Decides about a JSON schema before anything is converted or compiled, because the library relaxes
// some keywords in silence, and needs seconds for others. Refuses by JSON pointer, keyword and
// limit (INVALID_ARGUMENT) every keyword that would not be enforced, except annotations, and every
// schema that no finite answer satisfies. Rewrites the others:
//
//   * an object with properties has no others, and has them in the schema's order;
//   * `required` names that properties lack become properties;
//   * a list of types and `oneOf` of alternatives that exclude each other become `anyOf`;
//   * `allOf` of objects without common properties becomes one object;
//   * `pattern`, `minLength` and `maxLength` become rules of our own;
//   * the root becomes a definition, because the masks of a root that refers to itself are too
//   narrow.
//
// Recursion is bounded. Pure.
absl::StatusOr<GatedSchema> GateSchema(std::string_view schema);

}  // namespace penstock
