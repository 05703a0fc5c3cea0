#include "worker/grammar/grammar_threads.h"

#include <sys/resource.h>
#include <unistd.h>

#include <utility>

#include "base/thread_name.h"

namespace penstock {

GrammarThreads::~GrammarThreads() { Stop(); }

void GrammarThreads::Add(std::function<void()> job) {
  MutexLock lock(mutex_);
  if (stopping_) return;
  while (threads_.size() < static_cast<size_t>(options_.threads)) {
    threads_.emplace_back([this] { Run(); });
  }
  jobs_.push_back(std::move(job));
  changed_.NotifyOne();
}

void GrammarThreads::Stop() {
  std::vector<std::thread> threads;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
    threads = std::exchange(threads_, {});
  }
  for (std::thread& thread : threads) thread.join();
}

void GrammarThreads::Run() {
  NameThisThread(options_.name);
  // On Linux, a thread's own. If it is refused, the thread runs at the process's priority.
  if (options_.nice > 0) {
    const auto self = static_cast<id_t>(gettid());
    setpriority(PRIO_PROCESS, self, getpriority(PRIO_PROCESS, self) + options_.nice);
  }
  while (true) {
    std::function<void()> job;
    {
      MutexLock lock(mutex_);
      while (jobs_.empty() && !stopping_) changed_.Wait(mutex_);
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();
  }
}

}  // namespace penstock
