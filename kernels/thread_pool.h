#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
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
    Run({.tasks = tasks,
         .context = &body,
         .call = [](const void* context, int64_t task, int thread) {
           (*static_cast<const Body*>(context))(task, thread);
         }});
  }

 private:
  struct Job {
    int64_t tasks = 0;
    const void* context = nullptr;
    void (*call)(const void* context, int64_t task, int thread) = nullptr;
  };

  void Run(const Job& job);
  void WorkerLoop(int thread);
  void Claim(int thread);

  // Written by the caller between jobs, while no worker is inside one.
  Job job_;
  alignas(64) std::atomic<uint64_t> generation_{0};  // odd once stopping
  alignas(64) std::atomic<int64_t> next_task_{0};
  alignas(64) std::atomic<int> busy_{0};  // workers that have not finished the current job
  Mutex mutex_;
  CondVar wake_;
  std::atomic<int> sleepers_{0};
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
