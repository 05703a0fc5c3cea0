#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

#include "base/mutex.h"
#include "base/status.h"

namespace penstock {

// Where calls for one role come in: open while the worker has that role. Counts those inside, so
// that a role is left only when nothing of it is under way. Any thread.
class RoleGate {
 public:
  // Held by a call as long as it, or whoever works for it, lives. Move-only; must not outlive its
  // gate.
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

  explicit RoleGate(std::string_view role) : role_(role) {}  // a literal: its name

  // `asked`: the epoch that the caller has in mind; 0: none in particular. FAILED_PRECONDITION when
  // the worker has another role, or has had another one since.
  absl::StatusOr<Pass> Enter(uint32_t asked) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (!open_) return FailedPrecondition("this is no {} worker now: plan again", role_);
    if (asked != 0 && asked != epoch_) {
      return FailedPrecondition(
          "this {} worker is in role epoch {}, and the call was placed in {}: plan again", role_,
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
  // False when there are calls inside: then it stays open.
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
