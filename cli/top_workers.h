#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cli/options.h"

namespace penstock {

// What workers say themselves, asked directly: for where there is no router, or none is believed.
class WorkersScreen {
 public:
  // Errors of Connect.
  static absl::StatusOr<std::unique_ptr<WorkersScreen>> Open(const TopOptions& options);
  ~WorkersScreen();

  // Rates are since the last picture.
  std::string Text();
  std::string Json();
  // Whether every worker has been heard; waited for before the only picture.
  bool complete();

 private:
  class Watch;
  WorkersScreen();

  SteadyClock clock_;
  std::vector<std::unique_ptr<Watch>> watches_;
};

}  // namespace penstock
