#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace penstock {

class SwapBudget;

// The right to swap a session out, whatever the length of its answers. Returned to the budget on
// destruction. Move-only; must not outlive its budget.
class SwapReservation {
 public:
  SwapReservation() = default;
  SwapReservation(SwapReservation&& other) noexcept
      : budget_(std::exchange(other.budget_, nullptr)), blocks_(other.blocks_) {}
  SwapReservation& operator=(SwapReservation&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(blocks_, other.blocks_);
    return *this;
  }
  ~SwapReservation();
  explicit operator bool() const { return budget_ != nullptr; }
  int64_t blocks() const { return blocks_; }  // the session's maximum

 private:
  friend class SwapBudget;
  SwapReservation(SwapBudget* budget, int64_t blocks) : budget_(budget), blocks_(blocks) {}
  SwapBudget* budget_ = nullptr;
  int64_t blocks_ = 0;
};

// Limits the part of the DRAM tier that may be needed to swap out sessions that were admitted
// without blocks for their longest answers. Any thread.
class SwapBudget {
 public:
  explicit SwapBudget(int64_t blocks) : blocks_(blocks) {}

  // Empty when fewer than `blocks` are left.
  SwapReservation Reserve(int64_t blocks) {
    if (reserved_.fetch_add(blocks) + blocks <= blocks_) return {this, blocks};
    reserved_ -= blocks;
    return {};
  }
  int64_t reserved() const { return reserved_; }

 private:
  friend class SwapReservation;
  const int64_t blocks_;
  std::atomic<int64_t> reserved_{0};
};

inline SwapReservation::~SwapReservation() {
  if (budget_ != nullptr) budget_->reserved_ -= blocks_;
}

}  // namespace penstock
