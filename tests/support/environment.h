#pragma once

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"

namespace penstock {

// Sets a variable of the process's environment, and restores it with the object's end.
class ScopedEnvironment {
 public:
  ScopedEnvironment(std::string name, const std::string& value) : name_(std::move(name)) {
    if (const char* before = std::getenv(name_.c_str())) before_ = before;
    setenv(name_.c_str(), value.c_str(), 1);
  }
  ~ScopedEnvironment() {
    if (before_.has_value()) {
      setenv(name_.c_str(), before_->c_str(), 1);
    } else {
      unsetenv(name_.c_str());
    }
  }
  ScopedEnvironment(const ScopedEnvironment&) = delete;
  ScopedEnvironment& operator=(const ScopedEnvironment&) = delete;

 private:
  const std::string name_;
  std::optional<std::string> before_;
};

// A variable that the build sets for every test.
inline std::string TestEnvironment(const char* name) {
  const char* value = std::getenv(name);
  PENSTOCK_CHECK(value != nullptr, "(run this test with ctest, which sets its environment)");
  return value;
}
inline std::string SourceFolder() { return TestEnvironment("PENSTOCK_SOURCE_DIR"); }
inline std::string BinaryFolder() { return TestEnvironment("PENSTOCK_BIN_DIR"); }
inline std::string ModelFolder() { return SourceFolder() + "/models/penstock-tiny"; }

}  // namespace penstock
