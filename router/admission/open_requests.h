#pragma once

#include <memory>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"

namespace penstock {

// Counts the open requests, up to a bound. Any thread.
class OpenRequests {
 public:
  explicit OpenRequests(uint32_t max) : max_(max) {}

  // One open request; the destructor releases it.
  class Slot {
   public:
    explicit Slot(OpenRequests& owner) : owner_(owner) {}
    ~Slot() { owner_.Leave(); }
    Slot(const Slot&) = delete;
    Slot& operator=(const Slot&) = delete;

   private:
    OpenRequests& owner_;
  };

  // RESOURCE_EXHAUSTED at the bound, UNAVAILABLE once closed.
  absl::StatusOr<std::unique_ptr<Slot>> Enter() EXCLUDES(mutex_);
  // The error that Enter would return now.
  absl::Status Check() const EXCLUDES(mutex_);
  // Refuses new requests and waits until none is open. False when `limit` has passed before.
  bool CloseAndWait(Duration limit) EXCLUDES(mutex_);
  uint32_t count() const EXCLUDES(mutex_);

 private:
  void Leave() EXCLUDES(mutex_);
  absl::Status CheckLocked() const REQUIRES(mutex_);

  const uint32_t max_;
  mutable Mutex mutex_;
  CondVar left_;
  uint32_t count_ GUARDED_BY(mutex_) = 0;
  bool closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace penstock
