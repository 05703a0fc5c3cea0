#include "worker/fault.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <memory>

#include "base/log.h"

namespace penstock {
namespace {

constexpr std::array<std::string_view, 6> kSteps = {"offered", "credited",  "streaming",
                                                    "landed",  "committed", "found"};

}  // namespace

absl::StatusOr<std::function<void(std::string_view step)>> MakeFault(const std::string& spec) {
  if (spec.empty()) return std::function<void(std::string_view)>();
  const size_t colon = spec.find(':');
  const std::string step = spec.substr(0, colon);
  const std::string action = colon == std::string::npos ? "" : spec.substr(colon + 1);
  const bool known = std::find(kSteps.begin(), kSteps.end(), step) != kSteps.end();
  if (!known || (action != "kill" && action != "stop")) {
    return InvalidArgument(
        "fault is '{}'; it must be STEP:ACTION with STEP one of offered, credited, streaming, "
        "landed, committed, found and ACTION kill or stop",
        spec);
  }
  auto armed = std::make_shared<std::atomic<bool>>(true);
  const int signal = action == "kill" ? SIGKILL : SIGSTOP;
  return std::function<void(std::string_view)>([=](std::string_view reached) {
    if (reached != step || !armed->exchange(false)) return;
    LogWarning("fault: {} at {}", action, step);
    raise(signal);
  });
}

}  // namespace penstock
