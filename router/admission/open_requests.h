#pragma once

#include <memory>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/status.h"

namespace penstock {

// Counts the requests that are open, up to a bound. Any thread.
class OpenRequests {
 public:
  explicit OpenRequests(uint32_t max) : max_(max) {}

  // One request's place; given back when it goes.
  class Place {
   public:
    explicit Place(OpenRequests& owner) : owner_(owner) {}
    ~Place() { owner_.Leave(); }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

   private:
    OpenRequests& owner_;
  };

  // RESOURCE_EXHAUSTED at the bound, UNAVAILABLE once closed.
  absl::StatusOr<std::unique_ptr<Place>> Enter() EXCLUDES(mutex_);
  // No more enter. Waits until the last has left; false when `limit` passed before.
  bool CloseAndWait(Duration limit) EXCLUDES(mutex_);
  uint32_t count() const EXCLUDES(mutex_);

 private:
  void Leave() EXCLUDES(mutex_);

  const uint32_t max_;
  mutable Mutex mutex_;
  CondVar left_;
  uint32_t count_ GUARDED_BY(mutex_) = 0;
  bool closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace penstock
