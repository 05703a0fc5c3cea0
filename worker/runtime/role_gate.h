#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

#include "base/mutex.h"
#include "base/status.h"

namespace penstock {

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

  // `asked`: the role epoch that the caller planned for, or 0 for any. FAILED_PRECONDITION when the
  // worker has another role, or the same role in another epoch.
  absl::StatusOr<Pass> Enter(uint32_t asked) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (!open_) return FailedPrecondition("the worker is not in the {} role; replan", role_);
    if (asked != 0 && asked != epoch_) {
      return FailedPrecondition(
          "this {} worker is in role epoch {} and the call was planned for epoch {}; replan", role_,
          epoch_, asked);
    }
    ++calls_;
    return Pass(this);
  }

  void Open(uint32_t epoch) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    epoch_ = epoch;
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
  uint32_t epoch_ GUARDED_BY(mutex_) = 0;
  int64_t calls_ GUARDED_BY(mutex_) = 0;
};

}  // namespace penstock
