#include "model/grammar/schema_json.h"

#include <cmath>
#include <vector>

namespace penstock {
namespace {

// Finding a key of an ordered object takes time in proportion to its keys.
constexpr size_t kMaxKeys = 1024;

}  // namespace

absl::StatusOr<SchemaJson> ParseSchemaJson(std::string_view text, size_t bytes_max) {
  if (text.size() > bytes_max) {
    return InvalidArgument("the schema has {} bytes; the limit is {}", text.size(), bytes_max);
  }
  std::vector<size_t> keys;  // of the open objects, by depth
  bool too_many = false;
  const auto check = [&](int depth, SchemaJson::parse_event_t event, SchemaJson&) {
    const auto level = static_cast<size_t>(depth);
    if (keys.size() <= level + 1) keys.resize(level + 2);
    if (event == SchemaJson::parse_event_t::object_start) keys[level + 1] = 0;
    if (event == SchemaJson::parse_event_t::key) too_many |= ++keys[level] > kMaxKeys;
    return !too_many;
  };
  SchemaJson parsed = SchemaJson::parse(text, check, /*allow_exceptions=*/false);
  if (too_many) return InvalidArgument("the schema has an object with over {} keys", kMaxKeys);
  if (parsed.is_discarded()) return InvalidArgument("the schema is not JSON");
  return parsed;
}

std::string JsonTypeName(const SchemaJson& value) {
  if (value.is_object()) return "object";
  if (value.is_array()) return "array";
  if (value.is_string()) return "string";
  if (value.is_boolean()) return "boolean";
  if (value.is_null()) return "null";
  if (value.is_number_integer()) return "integer";
  const auto number = value.get<double>();
  return number == std::floor(number) ? "integer" : "number";
}

absl::StatusOr<int> SchemaCount(const SchemaJson& said, const char* keyword, int missing, int most,
                                const std::string& pointer) {
  if (!said.contains(keyword)) return missing;
  const SchemaJson& value = said[keyword];
  const double count = value.is_number() ? value.get<double>() : -1;
  if (count >= 0 && count <= most && count == std::floor(count)) return static_cast<int>(count);
  return SchemaFault(pointer + "/" + keyword, "is {}; it may be a whole number up to {}",
                     value.dump().substr(0, 32), most);
}

}  // namespace penstock
