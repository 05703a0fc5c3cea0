#pragma once

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace penstock {

// Keeps the order of keys, which is the order of an answer's properties.
using SchemaJson = nlohmann::ordered_json;

// INVALID_ARGUMENT beyond `bytes_max`, for other text than JSON, and for objects with more than
// 1,024 keys. Pure.
absl::StatusOr<SchemaJson> ParseSchemaJson(std::string_view text, size_t bytes_max);

// The name that JSON Schema has for the value's type; "integer" for whole numbers.
std::string JsonTypeName(const SchemaJson& value);

// An error about the schema at a JSON pointer.
template <class... Args>
absl::Status SchemaFault(std::string_view pointer, fmt::format_string<Args...> format,
                         Args&&... args) {
  return InvalidArgument("{}: {}", pointer.empty() ? "the schema" : pointer,
                         fmt::format(format, std::forward<Args>(args)...));
}

template <class List>
bool HasName(const List& list, std::string_view name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

// A keyword's whole number from 0 to `most`; `missing` without it.
absl::StatusOr<int> SchemaCount(const SchemaJson& said, const char* keyword, int missing, int most,
                                const std::string& pointer);

}  // namespace penstock
