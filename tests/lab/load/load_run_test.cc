// The load itself, on a target that answers when the test says so.
#include "lab/load/load_run.h"

#include <gtest/gtest.h>

#include <thread>

namespace penstock {
namespace {

using namespace std::chrono_literals;

TimePoint Now() { return std::chrono::steady_clock::now(); }

// Holds every call until Answer or CancelAll.
class FakeTarget final : public LoadTarget {
 public:
  class Call final : public LoadCall {
   public:
    explicit Call(FakeTarget& target) : target_(target) {}
    void Start(TimePoint planned, OnDone done) override {
      target_.Add({.planned = planned, .sent = Now()}, std::move(done));
    }

   private:
    FakeTarget& target_;
  };

  std::shared_ptr<LoadCall> Prepare(const LoadRequest&) override {
    return std::make_shared<Call>(*this);
  }
  void CancelAll() override { Finish(LoadResult::kUnfinished, SIZE_MAX); }
  absl::StatusOr<std::string> FindModel() override { return std::string("fake"); }
  void SetModel(const std::string&) override {}

  void Answer(size_t max = SIZE_MAX) { Finish(LoadResult::kGood, max); }
  size_t open() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return open_.size();
  }
  void AwaitOpen(size_t count) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (open_.size() < count) changed_.Wait(mutex_);
  }

 private:
  struct Open {
    LoadRecord record;
    LoadCall::OnDone done;
  };

  void Add(LoadRecord record, LoadCall::OnDone done) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    open_.push_back({std::move(record), std::move(done)});
    changed_.NotifyAll();
  }
  void Finish(LoadResult result, size_t max) EXCLUDES(mutex_) {
    std::vector<Open> finished;
    {
      MutexLock lock(mutex_);
      while (!open_.empty() && finished.size() < max) {
        finished.push_back(std::move(open_.front()));
        open_.erase(open_.begin());
      }
    }
    for (Open& each : finished) {
      each.record.result = result;
      each.record.end = Now();
      each.done(std::move(each.record));
    }
  }

  Mutex mutex_;
  CondVar changed_;
  std::vector<Open> open_ GUARDED_BY(mutex_);
};

void IgnoreProgress(const LoadProgress&) {}

TEST(LoadRunTest, RequestsGoOutAtTheirTimesThoughNoneIsAnswered) {
  FakeTarget target;
  const auto source = MakeSyntheticSource({.requests = 30, .rate = 300});
  LoadRun run(target, *source, {});
  LoadOutcome outcome;
  std::thread runner([&] { outcome = run.Run(IgnoreProgress); });
  target.AwaitOpen(30);  // would wait for ever if answers held anything up
  target.Answer();
  runner.join();
  ASSERT_EQ(outcome.records.size(), 30u);
  EXPECT_FALSE(outcome.stopped);
  for (const LoadRecord& record : outcome.records) EXPECT_GE(record.sent, record.planned);
}

TEST(LoadRunTest, AClosedLoopKeepsSoManyRunning) {
  FakeTarget target;
  const auto source = MakeSyntheticSource({.requests = 20});
  LoadRun run(target, *source, {.concurrency = 3});
  LoadOutcome outcome;
  std::thread runner([&] { outcome = run.Run(IgnoreProgress); });
  for (int ended = 0; ended < 20; ++ended) {
    target.AwaitOpen(std::min(3, 20 - ended));
    EXPECT_LE(target.open(), 3u);
    target.Answer(1);
  }
  runner.join();
  EXPECT_EQ(outcome.records.size(), 20u);
}

TEST(LoadRunTest, AStopGivesUpWhatRuns) {
  FakeTarget target;
  const auto source = MakeSyntheticSource({.requests = 0});  // without end
  LoadRun run(target, *source, {.concurrency = 4});
  LoadOutcome outcome;
  std::thread runner([&] { outcome = run.Run(IgnoreProgress); });
  target.AwaitOpen(4);
  target.Answer(2);
  target.AwaitOpen(4);
  run.Stop();
  runner.join();
  EXPECT_TRUE(outcome.stopped);
  ASSERT_EQ(outcome.records.size(), 6u);
  int good = 0;
  for (const LoadRecord& record : outcome.records) good += record.result == LoadResult::kGood;
  EXPECT_EQ(good, 2);
}

TEST(LoadRunTest, NoneGoesOutAfterTheDuration) {
  FakeTarget target;
  const auto source = MakeSyntheticSource({.requests = 0, .rate = 1000});
  LoadRun run(target, *source, {.duration_s = 0.1});
  LoadOutcome outcome;
  std::thread runner([&] { outcome = run.Run(IgnoreProgress); });
  target.AwaitOpen(50);
  std::atomic<bool> ended = false;
  std::thread answerer([&] {
    while (!ended) target.Answer();
  });
  runner.join();
  ended = true;
  answerer.join();
  for (const LoadRecord& record : outcome.records) {
    EXPECT_LE(record.planned - outcome.start, 100ms);
  }
  EXPECT_NEAR(static_cast<double>(outcome.records.size()), 100, 45);
}

TEST(LoadRunTest, ProgressCountsWhatHasEnded) {
  FakeTarget target;
  const auto source = MakeSyntheticSource({.requests = 5});
  LoadRun run(target, *source, {.concurrency = 5});
  LoadProgress last;
  std::atomic<int> reports = 0;
  std::thread runner([&] {
    run.Run([&](const LoadProgress& progress) {
      last = progress;
      ++reports;
    });
  });
  target.AwaitOpen(5);
  target.Answer(2);
  const int before = reports;
  while (reports < before + 2) std::this_thread::yield();
  target.Answer();
  runner.join();
  EXPECT_EQ(last.sent, 5u);
  EXPECT_GE(last.good, 2u);
}

}  // namespace
}  // namespace penstock
