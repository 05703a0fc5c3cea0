#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/status.h"

namespace penstock {

struct FileValue {
  std::string where;  // "file:line:column"
  std::vector<std::string> values;
};

// The flat map of a YAML or JSON file: key to its value, or to the values of its list, as text.
// NOT_FOUND when it cannot be opened; FAILED_PRECONDITION, with line and column, when it is
// anything else than such a map. At most 1 MiB.
absl::StatusOr<std::map<std::string, FileValue>> ReadConfigFile(const std::string& path);

}  // namespace penstock
