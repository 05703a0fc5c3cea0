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
  size_t values = 400'000;  // a prompt of token ids has one for each
};

// One JSON value in strict UTF-8, without duplicate keys. INVALID_ARGUMENT says at which byte it is
// none, or which limit it exceeds.
absl::StatusOr<Json> ParseJson(std::string_view text, const JsonLimits& limits = {});

// Reads the fields of one object; null counts as absent. The first thing that is wrong is kept in
// status(), as a BadField, and what is read after it has no meaning.
class FieldReader {
 public:
  // `path` is put before the names in errors, e.g. "messages[3]."; `object` outlives the reader.
  FieldReader(const Json& object, std::string path) : object_(object), path_(std::move(path)) {}

  // The field's value, or null.
  const Json* Any(const char* name);
  const std::string* String(const char* name);
  std::optional<double> Number(const char* name);
  // Within [least, most].
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

// "a string", "a list" and so on, for errors.
std::string_view KindOf(const Json& value);
// `value` as an integer within [least, most]: also 3.0, as some clients write it.
absl::StatusOr<int64_t> IntegerOf(const std::string& field, const Json& value, int64_t min,
                                  int64_t max);

// Appends `text`, which is UTF-8, as a JSON string.
void AppendJsonString(std::string_view text, std::string& out);
// Appends a number JSON has: what it has not (infinities, NaN) becomes the nearest that means it.
void AppendJsonNumber(float value, std::string& out);
// The same as text, with every byte that is not part of valid UTF-8 replaced by U+FFFD.
std::string ReplaceInvalidUtf8(std::string_view text);

}  // namespace penstock
