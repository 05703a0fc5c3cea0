#pragma once

#include <atomic>
#include <cstddef>

namespace penstock {

// Limits the bytes of requests that all connections hold until they are answered. Any thread.
class BodyBudget {
 public:
  explicit BodyBudget(size_t max) : max_(max) {}
  bool Take(size_t bytes) {
    if (taken_.fetch_add(bytes) + bytes <= max_) return true;
    taken_.fetch_sub(bytes);
    return false;
  }
  void Give(size_t bytes) { taken_.fetch_sub(bytes); }
  size_t taken() const { return taken_.load(); }

 private:
  const size_t max_;
  std::atomic<size_t> taken_{0};
};

// One request's reservation in the budget, released by the destructor. One thread at a time.
class HeldBody {
 public:
  explicit HeldBody(BodyBudget& budget) : budget_(budget) {}
  ~HeldBody() { budget_.Give(bytes_); }
  HeldBody(const HeldBody&) = delete;
  HeldBody& operator=(const HeldBody&) = delete;

  // Enlarges the reservation. Returns false, without a change, if the budget has no room.
  bool GrowTo(size_t bytes) {
    if (bytes <= bytes_) return true;
    if (!budget_.Take(bytes - bytes_)) return false;
    bytes_ = bytes;
    return true;
  }

 private:
  BodyBudget& budget_;
  size_t bytes_ = 0;
};

}  // namespace penstock
