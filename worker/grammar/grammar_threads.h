#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace penstock {

// Threads that run jobs in the order of their arrival. They start with the first job. Any thread.
class GrammarThreads {
 public:
  struct Options {
    int threads = 1;
    const char* name = "";  // of the threads; at most 15 bytes
    int nice = 0;           // added to the process's: lower priority
  };

  explicit GrammarThreads(Options options) : options_(options) {}
  ~GrammarThreads();  // Stop()s.

  // Callers bound the number of jobs that wait. Jobs added after Stop do not run.
  void Add(std::function<void()> job) EXCLUDES(mutex_);
  // Runs the jobs that wait, and ends the threads. Idempotent; one thread calls it.
  void Stop() EXCLUDES(mutex_);

 private:
  void Run() EXCLUDES(mutex_);

  const Options options_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> jobs_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ GUARDED_BY(mutex_);
};

}  // namespace penstock
