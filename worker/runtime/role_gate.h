#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

#include "base/mutex.h"
#include "base/status.h"

namespace penstock {

// A role of one process, as a call was planned for it; 0: any.
struct PlannedRole {
  uint64_t incarnation = 0;  // WorkerState.incarnation
  uint32_t epoch = 0;        // WorkerState.role_epoch
};
template <class Request>
PlannedRole PlannedBy(const Request& request) {
  return {.incarnation = request.incarnation(), .epoch = request.role_epoch()};
}

// Admits calls for one role while the worker has that role, and counts the calls inside, so that
// the worker changes its role only when no call of the role is open. Any thread.
class RoleGate {
 public:
  // A call's place inside the gate, kept until the call and its work have ended. Move-only; must
  // not outlive the gate.
  class Pass {
   public:
    Pass() = default;
    Pass(Pass&& other) noexcept : gate_(std::exchange(other.gate_, nullptr)) {}
    Pass& operator=(Pass&& other) noexcept {
      std::swap(gate_, other.gate_);
      return *this;
    }
    ~Pass() {
      if (gate_ != nullptr) gate_->Leave();
    }

   private:
    friend class RoleGate;
    explicit Pass(RoleGate* gate) : gate_(gate) {}
    RoleGate* gate_ = nullptr;
  };

  explicit RoleGate(std::string_view role) : role_(role) {}  // a literal: the role's name

  // FAILED_PRECONDITION when the call was planned for an earlier process at this address, which may
  // have had another model, when the worker has another role, or the same role in another epoch.
  absl::StatusOr<Pass> Enter(const PlannedRole& planned) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (!open_) return FailedPrecondition("the worker is not in the {} role; replan", role_);
    if (planned.incarnation != 0 && planned.incarnation != present_.incarnation) {
      return FailedPrecondition(
          "the call was planned for an earlier process at this address; replan");
    }
    if (planned.epoch != 0 && planned.epoch != present_.epoch) {
      return FailedPrecondition(
          "this {} worker is in role epoch {} and the call was planned for epoch {}; replan", role_,
          present_.epoch, planned.epoch);
    }
    ++calls_;
    return Pass(this);
  }

  void Open(const PlannedRole& present) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    present_ = present;
    open_ = true;
  }
  // False when calls are inside: the gate then stays open.
  bool CloseIfEmpty() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (calls_ > 0) return false;
    open_ = false;
    return true;
  }
  int64_t calls() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return calls_;
  }

 private:
  void Leave() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    --calls_;
  }

  const std::string_view role_;
  mutable Mutex mutex_;
  bool open_ GUARDED_BY(mutex_) = false;
  PlannedRole present_ GUARDED_BY(mutex_);
  int64_t calls_ GUARDED_BY(mutex_) = 0;
};

}  // namespace penstock
