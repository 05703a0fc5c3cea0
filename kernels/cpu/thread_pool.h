#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "kernels/device.h"

namespace penstock {

// A fork-join pool. Threads spin for some microseconds after a job, because the next kernel of a
// step follows at once, and then sleep. One caller at a time; bodies must not call back into it.
class ThreadPool {
 public:
  // `threads` counts the caller: 1 starts none.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(task, thread) for every task in [0, tasks), and returns when all are done. Tasks are
  // claimed in ascending order by whichever thread is free, so a thread that the kernel descheduled
  // delays at most the task it holds. `thread` is in [0, threads()).
  template <class Body>
  void ParallelFor(int64_t tasks, const Body& body) {
    const Job job{.tasks = tasks, .context = &body, .call = &CallBody<Body>};
    Run(job);
  }

 private:
  struct Job {
    int64_t tasks = 0;
    const void* context = nullptr;
    void (*call)(const void* context, int64_t task, int thread) = nullptr;
  };

  template <class Body>
  static void CallBody(const void* context, int64_t task, int thread) {
    (*static_cast<const Body*>(context))(task, thread);
  }

  void Run(const Job& job);
  void WorkerLoop(int thread);
  void ClaimUntilEmpty(int thread);

  // Written by the caller while no task is pending, read by whoever has claimed a task.
  Job job_;
  // Generation of the job in the upper half, tasks not yet claimed in the lower: a claim succeeds
  // only against the job it was read for, so a late thread cannot take a task of the next one.
  alignas(64) std::atomic<uint64_t> claims_{0};
  alignas(64) std::atomic<int32_t> pending_{0};     // tasks not yet done
  alignas(64) std::atomic<int32_t> generation_{0};  // what sleeping workers wait on
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> workers_;
};

// Over `exec.threads`, or on the caller alone where there is none.
template <class Body>
void ParallelFor(const Exec& exec, int64_t tasks, const Body& body) {
  if (exec.threads != nullptr && tasks > 1) {
    exec.threads->ParallelFor(tasks, body);
    return;
  }
  for (int64_t task = 0; task < tasks; ++task) body(task, 0);
}

inline int ThreadCount(const Exec& exec) {
  return exec.threads == nullptr ? 1 : exec.threads->threads();
}

}  // namespace penstock
