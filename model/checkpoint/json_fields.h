#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace penstock {

// Parses `text` as one JSON object of at most `max_bytes`. Returns INVALID_ARGUMENT that names
// `where`.
absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text, std::string_view where,
                                               size_t max_bytes);

// Typed, range-checked reads from a JSON object. The first error is kept; later reads then return
// the minimum of the allowed range, and the caller checks status() once at the end. null counts as
// absent. Absence is an error unless a default is given. One thread.
class JsonFields {
 public:
  // `object` outlives this object. `where` precedes field names in errors: "config.json: ".
  JsonFields(const nlohmann::json& object, std::string where);

  bool Has(const std::string& key) const;
  int64_t Int(const std::string& key, int64_t min, int64_t max,
              std::optional<int64_t> absent = std::nullopt);
  double Float(const std::string& key, double min, double max,
               std::optional<double> absent = std::nullopt);
  bool Bool(const std::string& key, bool absent);
  // A string, one of `allowed`.
  std::string Choice(const std::string& key, const std::vector<std::string>& allowed,
                     const std::optional<std::string>& absent = std::nullopt);
  // An integer or a list of at most `max_size` integers; empty if absent.
  std::vector<int64_t> IntOrList(const std::string& key, int64_t min, int64_t max, size_t max_size);
  // A list of at most `max_size` strings; empty if absent.
  std::vector<std::string> Strings(const std::string& key, size_t max_size);
  // A list of at most `max_size` numbers; empty if absent.
  std::vector<double> Floats(const std::string& key, double min, double max, size_t max_size);
  // nullptr if absent; an error if the value is not an object.
  const nlohmann::json* Object(const std::string& key);

  void Fail(const std::string& key,
            std::string_view allowed);  // "<key> is <value>, allowed is ..."
  const absl::Status& status() const { return status_; }

 private:
  const nlohmann::json* Find(const std::string& key) const;  // nullptr: absent or null
  const nlohmann::json* Need(const std::string& key, bool has_default);

  const nlohmann::json& object_;
  const std::string where_;
  absl::Status status_;
};

}  // namespace penstock
