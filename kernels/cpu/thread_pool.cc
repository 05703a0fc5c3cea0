#include "kernels/cpu/thread_pool.h"

#include <limits>

#include "base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace penstock {
namespace {

// About 50 microseconds: longer than the serial part between two kernels of a step, and too short
// to take a core from another process.
constexpr int kSpins = 500;

// A hypervisor deschedules a guest that executes many pause instructions in close succession
// (pause-loop exiting), so this loop spaces them out.
void Pause() {
#if defined(__x86_64__)
  _mm_pause();
  for (int i = 0; i < 100; ++i) asm volatile("nop; nop; nop; nop");
#else
  std::this_thread::yield();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  PENSTOCK_CHECK_GE(threads, 1);
  for (int thread = 1; thread < threads; ++thread) {
    workers_.emplace_back([this, thread] { WorkerLoop(thread); });
  }
}

ThreadPool::~ThreadPool() {
  stopping_.store(true);
  generation_.fetch_add(1);
  generation_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Run(const Job& job) {
  if (job.tasks <= 0) return;
  PENSTOCK_CHECK_LE(job.tasks, std::numeric_limits<int32_t>::max());
  job_ = job;
  pending_.store(static_cast<int32_t>(job.tasks), std::memory_order_relaxed);
  const uint64_t next = (claims_.load(std::memory_order_relaxed) >> 32) + 1;
  claims_.store(next << 32 | static_cast<uint64_t>(job.tasks), std::memory_order_release);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  ClaimUntilEmpty(0);
  for (int spin = 0; pending_.load(std::memory_order_acquire) != 0; ++spin) {
    if (spin < kSpins) {
      Pause();
    } else if (const int32_t left = pending_.load(std::memory_order_acquire); left != 0) {
      pending_.wait(left, std::memory_order_acquire);
    }
  }
}

void ThreadPool::ClaimUntilEmpty(int thread) {
  uint64_t claims = claims_.load(std::memory_order_acquire);
  while ((claims & 0xffffffffu) != 0) {
    if (!claims_.compare_exchange_weak(claims, claims - 1, std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
      continue;
    }
    // The job cannot change before this task has finished.
    const auto unclaimed = static_cast<int64_t>(claims & 0xffffffffu);
    job_.call(job_.context, job_.tasks - unclaimed, thread);
    if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_one();
    claims = claims_.load(std::memory_order_acquire);
  }
}

void ThreadPool::WorkerLoop(int thread) {
  int32_t seen = 0;
  while (!stopping_.load(std::memory_order_acquire)) {
    int32_t generation = generation_.load(std::memory_order_acquire);
    for (int spin = 0; generation == seen && spin < kSpins; ++spin) {
      Pause();
      generation = generation_.load(std::memory_order_acquire);
    }
    if (generation == seen) {
      generation_.wait(seen, std::memory_order_acquire);
      continue;
    }
    seen = generation;
    ClaimUntilEmpty(thread);
  }
}

}  // namespace penstock
