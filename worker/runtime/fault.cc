#include "worker/runtime/fault.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <memory>
#include <utility>

#include "base/log/log.h"

namespace penstock {
namespace {

constexpr std::array<std::string_view, 6> kSteps = {"offered", "credited",  "streaming",
                                                    "landed",  "committed", "found"};
constexpr std::string_view kMove = "move-";

bool IsStep(std::string_view step) {
  if (step.starts_with(kMove)) step.remove_prefix(kMove.size());
  return std::find(kSteps.begin(), kSteps.end(), step) != kSteps.end();
}

}  // namespace

absl::StatusOr<std::function<void(std::string_view step)>> MakeFault(const std::string& spec) {
  if (spec.empty()) return std::function<void(std::string_view)>();
  const size_t colon = spec.find(':');
  const std::string step = spec.substr(0, colon);
  const std::string action = colon == std::string::npos ? "" : spec.substr(colon + 1);
  if (!IsStep(step) || (action != "kill" && action != "stop")) {
    return InvalidArgument(
        "fault is '{}'; it must be STEP:ACTION with STEP one of offered, credited, streaming, "
        "landed, committed, found (move-offered ... of a decode worker's own handoffs) and ACTION "
        "kill or stop",
        spec);
  }
  auto armed = std::make_shared<std::atomic<bool>>(true);
  const int signal = action == "kill" ? SIGKILL : SIGSTOP;
  return std::function<void(std::string_view)>([=](std::string_view reached) {
    if (reached != step || !armed->exchange(false)) return;
    LogWarning("fault_injected", "{} at {}", action, step);
    raise(signal);
  });
}

std::function<void(std::string_view step)> FaultOfMoves(
    std::function<void(std::string_view step)> fault) {
  if (fault == nullptr) return fault;
  return [fault = std::move(fault)](std::string_view step) {
    fault(std::string(kMove) + std::string(step));
  };
}

}  // namespace penstock
