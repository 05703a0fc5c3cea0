#include "worker/runtime/drain.h"

#include <thread>

#include "base/log/log.h"

namespace penstock {
namespace {

constexpr auto kDrainPollInterval = std::chrono::milliseconds(10);
constexpr auto kDrainReportInterval = std::chrono::seconds(1);

void Report(const char* what, const OpenWork& left, uint64_t moved_before) {
  Log(LogLevel::kInfo, "draining",
      {{"state", what},
       {"running", left.running},
       {"handoffs", left.handoffs},
       {"moved", left.moved - moved_before}});
}

}  // namespace

bool Drain(const std::function<OpenWork()>& open_work, Duration limit) {
  const auto start = std::chrono::steady_clock::now();
  OpenWork now = open_work();
  if (now.running == 0 && now.handoffs == 0) return true;
  const uint64_t moved_before = now.moved;
  auto reported = start;
  Report("left", now, moved_before);
  while (now.running > 0 || now.handoffs > 0) {
    const auto time = std::chrono::steady_clock::now();
    if (time - start >= limit) {
      Report("given up", now, moved_before);
      return false;
    }
    if (time - reported >= kDrainReportInterval) {
      Report("left", now, moved_before);
      reported = time;
    }
    std::this_thread::sleep_for(kDrainPollInterval);
    now = open_work();
  }
  Report("done", now, moved_before);
  return true;
}

}  // namespace penstock
