#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cli/operate/commands.h"

namespace penstock {

// The state of workers, asked directly: for clusters without a router, or with a suspect one.
class WorkersScreen {
 public:
  // Errors of Connect.
  static absl::StatusOr<std::unique_ptr<WorkersScreen>> Open(const TopOptions& options);
  ~WorkersScreen();

  // Rates are since the last picture.
  std::string Text();
  std::string Json();
  // True once every worker has answered; --once waits for that.
  bool complete();

 private:
  class Watch;
  WorkersScreen();

  SteadyClock clock_;
  std::vector<std::unique_ptr<Watch>> watches_;
};

}  // namespace penstock
