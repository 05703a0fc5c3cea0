#include "lab/load/load_run.h"

#include <algorithm>

#include "base/clock.h"

namespace penstock {
namespace {

constexpr Duration kReportEvery = std::chrono::milliseconds(200);

Duration Seconds(double seconds) { return Duration(static_cast<int64_t>(seconds * 1e9)); }

}  // namespace

LoadOutcome LoadRun::Run(const OnProgress& on_progress) {
  on_progress_ = on_progress;
  start_ = reported_ = SteadyClock().Now();
  while (std::optional<LoadRequest> request = source_.Next()) {
    const TimePoint planned = start_ + Seconds(request->at_s);
    const std::shared_ptr<LoadCall> call = target_.Prepare(*request);
    if (!AwaitTurn(planned)) break;
    call->Start(plan_.concurrency == 0 ? planned : SteadyClock().Now(),
                [this](LoadRecord record) { OnDone(std::move(record)); });
  }
  AwaitAll();
  MutexLock lock(mutex_);
  LoadOutcome outcome{.start = start_, .records = std::move(records_), .stopped = stopped_};
  TimePoint end = outcome.records.empty() ? SteadyClock().Now() : start_;
  for (const LoadRecord& record : outcome.records) end = std::max(end, record.end);
  outcome.seconds = Milliseconds(end - start_) / 1e3;
  return outcome;
}

void LoadRun::Stop() {
  {
    MutexLock lock(mutex_);
    stopped_ = true;
  }
  changed_.NotifyAll();
  target_.CancelAll();
}

bool LoadRun::HasTurn(TimePoint now, TimePoint planned) const {
  return plan_.concurrency == 0 ? now >= planned : progress_.running() < plan_.concurrency;
}

bool LoadRun::AwaitTurn(TimePoint planned) {
  const TimePoint last = start_ + Seconds(plan_.duration_s);
  while (true) {
    Report();
    MutexLock lock(mutex_);
    const TimePoint now = SteadyClock().Now();
    const TimePoint goes_out = plan_.concurrency == 0 ? planned : now;
    if (stopped_ || (plan_.duration_s > 0 && goes_out > last)) return false;
    if (HasTurn(now, planned)) {
      ++progress_.sent;
      return true;
    }
    Duration wait = kReportEvery;
    if (plan_.concurrency == 0) wait = std::min(wait, planned - now);
    changed_.WaitFor(mutex_, wait);
  }
}

void LoadRun::AwaitAll() {
  while (true) {
    Report();
    MutexLock lock(mutex_);
    if (progress_.running() == 0) return;
    changed_.WaitFor(mutex_, kReportEvery);
  }
}

void LoadRun::OnDone(LoadRecord record) {
  MutexLock lock(mutex_);
  progress_.good += record.result == LoadResult::kGood ? 1 : 0;
  progress_.failed += record.result == LoadResult::kFailed ? 1 : 0;
  progress_.unfinished += record.result == LoadResult::kUnfinished ? 1 : 0;
  records_.push_back(std::move(record));
  changed_.NotifyAll();  // under the lock: once the last one is seen, this object may be gone
}

void LoadRun::Report() {
  const TimePoint now = SteadyClock().Now();
  if (now - reported_ < kReportEvery) return;
  reported_ = now;
  LoadProgress progress;
  {
    MutexLock lock(mutex_);
    progress = progress_;
  }
  progress.seconds = Milliseconds(now - start_) / 1e3;
  on_progress_(progress);
}

}  // namespace penstock
