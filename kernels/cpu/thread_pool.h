#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "kernels/device.h"

namespace penstock {

// Owns a fork-join pool of threads. After a job the threads spin for some microseconds, because the
// next kernel of a step follows at once, and then sleep. One thread at a time may call it; bodies
// must not call it. The destructor joins the threads.
class ThreadPool {
 public:
  // `threads` includes the calling thread: with 1, no thread is started.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(task, thread) for every task in [0, tasks) and returns when all have returned. Free
  // threads claim tasks in ascending order, so a thread that the operating system descheduled
  // delays at most the task that it is running. `thread` is in [0, threads()).
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

  // The caller writes it while no task is pending; a thread reads it only after it has claimed a
  // task.
  Job job_;
  // Upper half: generation of the job. Lower half: tasks that are not claimed yet. A claim succeeds
  // only for the generation that it was read for, so a late thread cannot take a task of the next
  // job.
  alignas(64) std::atomic<uint64_t> claims_{0};
  // Claimed or unclaimed tasks that have not finished.
  alignas(64) std::atomic<int32_t> pending_{0};
  alignas(64) std::atomic<int32_t> generation_{0};  // sleeping workers wait for it to change
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> workers_;
};

// Runs the tasks on `exec.threads`, or on the calling thread if it is null.
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
