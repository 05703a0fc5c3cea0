#include "kvstore/wire/same_host/read_permission.h"

#include <sys/prctl.h>

namespace penstock {

ReadPermission& ReadPermission::OfThisProcess() {
  static ReadPermission* const permission = new ReadPermission([](unsigned long readers) {
    // EINVAL without Yama, where nothing needs permission.
    prctl(PR_SET_PTRACER, readers, 0, 0, 0);
  });
  return *permission;
}

void ReadPermission::Add(pid_t pid, int grants) {
  MutexLock lock(mutex_);
  const auto reader = readers_.try_emplace(pid, 0).first;
  reader->second += grants;
  if (reader->second == 0) readers_.erase(reader);
  const bool one = readers_.size() == 1 && readers_.begin()->first != 0;
  permit_(readers_.empty() ? 0
          : one            ? static_cast<unsigned long>(readers_.begin()->first)
                           : PR_SET_PTRACER_ANY);
}

}  // namespace penstock
