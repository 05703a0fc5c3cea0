#pragma once

#include <atomic>
#include <cstddef>

namespace penstock {

// Limits the bytes of requests that all connections hold until they are answered. Any thread.
class BodyBudget {
 public:
  explicit BodyBudget(size_t max) : max_(max) {}
  bool Reserve(size_t bytes) {
    if (reserved_.fetch_add(bytes) + bytes <= max_) return true;
    reserved_.fetch_sub(bytes);
    return false;
  }
  void Release(size_t bytes) { reserved_.fetch_sub(bytes); }
  size_t reserved() const { return reserved_.load(); }

 private:
  const size_t max_;
  std::atomic<size_t> reserved_{0};
};

// One request's reservation in the budget, released by the destructor. One thread at a time.
class BodyReservation {
 public:
  explicit BodyReservation(BodyBudget& budget) : budget_(budget) {}
  ~BodyReservation() { budget_.Release(bytes_); }
  BodyReservation(const BodyReservation&) = delete;
  BodyReservation& operator=(const BodyReservation&) = delete;

  // Enlarges the reservation. Returns false, without a change, if the budget has no room.
  bool GrowTo(size_t bytes) {
    if (bytes <= bytes_) return true;
    if (!budget_.Reserve(bytes - bytes_)) return false;
    bytes_ = bytes;
    return true;
  }

 private:
  BodyBudget& budget_;
  size_t bytes_ = 0;
};

}  // namespace penstock
