#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "lab/load/target.h"

namespace penstock {

struct LoadPlan {
  uint32_t concurrency = 0;  // concurrent requests; 0: each goes out at its time
  double duration_s = 0;     // none goes out after so long; 0: no limit
};

struct LoadProgress {
  double seconds = 0;
  uint32_t sent = 0;
  uint32_t good = 0;
  uint32_t failed = 0;
  uint32_t unfinished = 0;

  uint32_t running() const { return sent - good - failed - unfinished; }
};

struct LoadOutcome {
  TimePoint start;
  double seconds = 0;               // to the end of the last response
  std::vector<LoadRecord> records;  // in the order in which they ended
  bool stopped = false;
};

// Puts a source's requests on a target. Requests that have times go out at those times, however
// slowly the others are answered.
class LoadRun {
 public:
  using OnProgress = std::function<void(const LoadProgress&)>;

  LoadRun(LoadTarget& target, RequestSource& source, const LoadPlan& plan)
      : target_(target), source_(source), plan_(plan) {}

  // Returns when every request has ended. Calls `on_progress` a few times a second. Once.
  LoadOutcome Run(const OnProgress& on_progress);
  // No more go out, and those that run are given up. Any thread.
  void Stop() EXCLUDES(mutex_);

 private:
  // Waits until a request planned for `planned` may go out; false: none may any more.
  bool AwaitTurn(TimePoint planned) EXCLUDES(mutex_);
  void AwaitAll() EXCLUDES(mutex_);
  void OnDone(LoadRecord record) EXCLUDES(mutex_);
  void Report() EXCLUDES(mutex_);
  bool HasTurn(TimePoint now, TimePoint planned) const REQUIRES(mutex_);

  LoadTarget& target_;
  RequestSource& source_;
  const LoadPlan plan_;
  OnProgress on_progress_;
  TimePoint start_;
  TimePoint reported_;

  Mutex mutex_;
  CondVar changed_;
  LoadProgress progress_ GUARDED_BY(mutex_);
  std::vector<LoadRecord> records_ GUARDED_BY(mutex_);
  bool stopped_ GUARDED_BY(mutex_) = false;
};

}  // namespace penstock
