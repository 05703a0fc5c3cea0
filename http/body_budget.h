#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/mutex.h"

namespace penstock {

// Limits the bytes of requests that all connections hold until they are answered. An account, which
// is a client or a tenant, may hold at most as much as is free (dynamic thresholds, Choudhury and
// Hahne 1998): one account can take half of the budget, and the next one half of the rest. Any
// thread.
class BodyBudget {
 public:
  explicit BodyBudget(size_t max) : max_(max) {}

  bool Reserve(const std::string& account, size_t bytes) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (reserved_ + bytes > max_) return false;
    size_t& held = held_[account];
    const bool fits = held + bytes <= max_ - reserved_ - bytes;
    if (fits) {
      held += bytes;
      reserved_ += bytes;
    }
    if (held == 0) held_.erase(account);
    return fits;
  }

  void Release(const std::string& account, size_t bytes) EXCLUDES(mutex_) {
    if (bytes == 0) return;
    MutexLock lock(mutex_);
    reserved_ -= bytes;
    const auto held = held_.find(account);
    held->second -= bytes;
    if (held->second == 0) held_.erase(held);
  }

  size_t reserved() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return reserved_;
  }

 private:
  const size_t max_;
  mutable Mutex mutex_;
  size_t reserved_ GUARDED_BY(mutex_) = 0;
  std::unordered_map<std::string, size_t> held_ GUARDED_BY(mutex_);  // by account; none is 0
};

// One request's reservation in the budget, released by the destructor. One thread at a time.
class BodyReservation {
 public:
  BodyReservation(BodyBudget& budget, std::string account)
      : budget_(budget), account_(std::move(account)) {}
  ~BodyReservation() { budget_.Release(account_, bytes_); }
  BodyReservation(const BodyReservation&) = delete;
  BodyReservation& operator=(const BodyReservation&) = delete;

  // Enlarges the reservation. Returns false, without a change, if the budget or the account's share
  // has no room.
  bool GrowTo(size_t bytes) {
    if (bytes <= bytes_) return true;
    if (!budget_.Reserve(account_, bytes - bytes_)) return false;
    bytes_ = bytes;
    return true;
  }

 private:
  BodyBudget& budget_;
  const std::string account_;
  size_t bytes_ = 0;
};

}  // namespace penstock
