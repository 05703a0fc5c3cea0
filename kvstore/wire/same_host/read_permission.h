#pragma once

#include <sys/types.h>

#include <functional>
#include <map>

#include "base/mutex.h"

namespace penstock {

// The processes that may read this process's memory where the Yama security module restricts that
// to ancestors (kernel.yama.ptrace_scope 1). Yama knows one process or all of the same user: so the
// peer of the only lane is named, all are permitted while lanes to several processes are open, and
// none without lanes. Any thread.
class ReadPermission {
 public:
  // `permit` takes the second argument of prctl(PR_SET_PTRACER).
  explicit ReadPermission(std::function<void(unsigned long)> permit) : permit_(std::move(permit)) {}

  // A reader's permission, from its construction on. `pid` 0: a process whose id is not known.
  class Grant {
   public:
    Grant(ReadPermission& owner, pid_t pid) : owner_(owner), pid_(pid) { owner_.Add(pid_, 1); }
    ~Grant() { owner_.Add(pid_, -1); }
    Grant(const Grant&) = delete;
    Grant& operator=(const Grant&) = delete;

   private:
    ReadPermission& owner_;
    const pid_t pid_;
  };

  static ReadPermission& OfThisProcess();

 private:
  void Add(pid_t pid, int grants) EXCLUDES(mutex_);

  const std::function<void(unsigned long)> permit_;
  Mutex mutex_;
  std::map<pid_t, int> readers_ GUARDED_BY(mutex_);  // with the number of their grants
};

}  // namespace penstock
