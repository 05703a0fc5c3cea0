#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace penstock {

using Json = nlohmann::json;

struct JsonLimits {
  size_t depth = 64;
  size_t values = 400'000;  // a prompt of token ids has one value for each token
  // Values other than numbers and literals in lists. They occupy up to 160 bytes each, the
  // others 16.
  size_t elements = 100'000;
};

// Parses one JSON value in strict UTF-8. INVALID_ARGUMENT names the byte at which the text is not
// JSON, a duplicate key, or the limit that is exceeded. Pure.
absl::StatusOr<Json> ParseJson(std::string_view text, const JsonLimits& limits = {});

// Reads the fields of one object; null counts as absent. status() keeps the first error, a
// BadField; values that are read after an error have no meaning. One thread.
class FieldReader {
 public:
  // `path` is put before the names in errors, e.g. "messages[3]."; `object` outlives the reader.
  FieldReader(const Json& object, std::string path) : object_(object), path_(std::move(path)) {}

  // The field's value; nullptr when it is absent.
  const Json* Any(const char* name);
  const std::string* String(const char* name);
  std::optional<double> Number(const char* name);
  // An error unless the value is in [min, max].
  std::optional<int64_t> Integer(const char* name, int64_t min, int64_t max);
  std::optional<bool> Bool(const char* name);
  const Json* Array(const char* name);
  const Json* Object(const char* name);

  std::string PathOf(const char* name) const { return path_ + name; }
  // Keeps the first error.
  void Note(absl::Status status);
  const absl::Status& status() const { return status_; }

 private:
  const Json* Typed(const char* name, bool (Json::*is)() const noexcept, std::string_view what);

  const Json& object_;
  const std::string path_;
  absl::Status status_;
};

// The type's name for errors, e.g. "a string" or "a list".
std::string_view KindOf(const Json& value);
// `value` as an integer in [min, max]. Accepts 3.0, which some clients write. BadField otherwise.
absl::StatusOr<int64_t> IntegerOf(const std::string& field, const Json& value, int64_t min,
                                  int64_t max);

// Appends `text`, which is UTF-8, as a JSON string.
void AppendJsonString(std::string_view text, std::string& out);
// Appends a number. JSON has no infinities and no NaN: they become 9999 or -9999.
void AppendJsonNumber(float value, std::string& out);
// `text` with every byte that is not part of valid UTF-8 replaced by U+FFFD.
std::string ReplaceInvalidUtf8(std::string_view text);

}  // namespace penstock
