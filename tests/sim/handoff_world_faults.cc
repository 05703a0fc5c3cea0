#include <algorithm>

#include "tests/sim/handoff_world.h"
#include "tests/sim/handoff_world_bounds.h"

namespace penstock::sim {

using std::chrono::milliseconds;

// Load and faults.

void HandoffWorld::PlanLoad() {
  const uint64_t requests = hostile() ? 5 + simulation_.Below(15) : 1 + simulation_.Below(6);
  for (uint64_t i = 0; i < requests; ++i) {
    Request request;
    request.tokens =
        static_cast<uint32_t>(1 + simulation_.Below(simulation_.Chance(500) ? 20 : 70));
    requests_.push_back(request);
    const int id = static_cast<int>(i);
    simulation_.After(simulation_.Between({}, kLoadUntil), [this, id] { Arrive(id); });
  }
}

void HandoffWorld::PlanFaults() {
  const auto plan = [&](uint64_t max, void (HandoffWorld::*fault)()) {
    for (uint64_t i = simulation_.Below(max + 1); i > 0; --i) {
      simulation_.After(simulation_.Between({}, kFaultsUntil), [this, fault] { (this->*fault)(); });
    }
  };
  if (simulation_.Chance(500)) plan(3, &HandoffWorld::CrashSomeone);
  if (simulation_.Chance(500)) plan(3, &HandoffWorld::PartitionSomeone);
  if (simulation_.Chance(500)) plan(3, &HandoffWorld::PauseSomeone);
  for (uint64_t i = simulation_.Chance(500) ? simulation_.Below(5) : 0; i > 0; --i) {
    simulation_.After(simulation_.Between({}, kFaultsUntil),
                      [this] { network_.BreakSomeStream(); });
  }
}

void HandoffWorld::CrashSomeone() {
  const bool prefill = simulation_.Chance(500);
  auto& workers = prefill ? prefills_ : decodes_;
  Worker& worker = *workers[simulation_.Below(workers.size())];
  ++totals_.crashes;
  simulation_.Note(fmt::format("{} dies", worker.process->name));
  Crash(worker, prefill);
  // The router's calls to it break at once; it is back at once, and knows nothing.
  for (size_t i = 0; i < attempts_.size(); ++i) {
    Attempt& attempt = *attempts_[i];
    const bool was_open = prefill ? attempt.sender != Side::kOk && attempt.sender != Side::kFailed
                                  : attempt.receiver != Side::kFailed;
    if ((prefill ? attempt.prefill : attempt.decode) != worker.process || !was_open) continue;
    (prefill ? attempt.sender : attempt.receiver) = Side::kFailed;
    Heard(i, absl::UnavailableError("the worker is gone"), !prefill);
  }
  prefill ? StartPrefill(worker) : StartDecode(worker);
}

void HandoffWorld::PartitionSomeone() {
  const int a = prefills_[simulation_.Below(prefills_.size())]->host;
  const int b = decodes_[simulation_.Below(decodes_.size())]->host;
  const TimePoint start = simulation_.now();
  const Duration length = simulation_.Between(milliseconds(10), milliseconds(1000));
  ++totals_.partitions;
  simulation_.Note(fmt::format("partition of {} and {} for {:.0f} ms", a, b, Milliseconds(length)));
  network_.Partition(a, b, true);
  simulation_.After(length, [this, a, b, start, length] {
    network_.Partition(a, b, false);
    simulation_.Note(fmt::format("partition of {} and {} heals", a, b));
    // Whoever was cut off for longer than a lease must have given up.
    if (length < kTiming.lease + 3 * kTick) return;
    for (const auto& attempt : attempts_) {
      const Process& prefill = *attempt->prefill;
      const Process& decode = *attempt->decode;
      if (prefill.host != a || decode.host != b || !attempt->stream) continue;
      if (attempt->stream->opened_at() > start) continue;
      const auto check = [&](const Process& process, bool open) {
        if (!open || !process.alive || process.paused_until > start) return;
        simulation_.Fail(fmt::format("{} is still open at {} after a partition of {:.0f} ms",
                                     HandoffKeyText(attempt->key), process.name,
                                     Milliseconds(length)));
      };
      check(prefill, attempt->sender == Side::kOpen);
      // A decode worker that has heard nothing yet has no lease to run out.
      check(decode, attempt->receiver == Side::kOpen && attempt->stream->heard_by_decode(start));
    }
  });
}

void HandoffWorld::PauseSomeone() {
  auto& workers = simulation_.Chance(500) ? prefills_ : decodes_;
  Process& process = *workers[simulation_.Below(workers.size())]->process;
  const Duration length = simulation_.Between(milliseconds(10), kPauseMax);
  simulation_.Note(fmt::format("{} stops for {:.0f} ms", process.name, Milliseconds(length)));
  process.paused_until = std::max(process.paused_until, simulation_.now() + length);
  simulation_.After(length, [] {});  // So that somebody looks when it goes on.
}

}  // namespace penstock::sim
