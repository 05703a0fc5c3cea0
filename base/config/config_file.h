#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/status.h"

namespace penstock {

// The value, or the list of values, of one key, and its place in the file for error messages.
struct FileValue {
  std::string where;  // "file:line:column"
  std::vector<std::string> values;
};

// Reads a YAML or JSON file that is a flat map from key to value, or to a list of values, as text.
// Returns NOT_FOUND if the file cannot be opened, and FAILED_PRECONDITION, with line and column,
// for any other content. The limit is 1 MiB.
absl::StatusOr<std::map<std::string, FileValue>> ReadConfigFile(const std::string& path);

}  // namespace penstock
