#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace penstock {

class SwapBudget;

// The right to swap a session out, whatever its answer's length. Gives it back when it goes.
// Move-only; must not outlive its room.
class SwapReservation {
 public:
  SwapReservation() = default;
  SwapReservation(SwapReservation&& other) noexcept
      : room_(std::exchange(other.room_, nullptr)), blocks_(other.blocks_) {}
  SwapReservation& operator=(SwapReservation&& other) noexcept {
    std::swap(room_, other.room_);
    std::swap(blocks_, other.blocks_);
    return *this;
  }
  ~SwapReservation();
  explicit operator bool() const { return room_ != nullptr; }
  int64_t blocks() const { return blocks_; }  // the most that the session may ever need

 private:
  friend class SwapBudget;
  SwapReservation(SwapBudget* room, int64_t blocks) : room_(room), blocks_(blocks) {}
  SwapBudget* room_ = nullptr;
  int64_t blocks_ = 0;
};

// How much of the DRAM tier may be needed for sessions that were admitted without blocks for their
// longest answers. Any thread.
class SwapBudget {
 public:
  explicit SwapBudget(int64_t blocks) : blocks_(blocks) {}

  // Empty when not so much is left.
  SwapReservation Promise(int64_t blocks) {
    if (promised_.fetch_add(blocks) + blocks <= blocks_) return {this, blocks};
    promised_ -= blocks;
    return {};
  }
  int64_t promised() const { return promised_; }

 private:
  friend class SwapReservation;
  const int64_t blocks_;
  std::atomic<int64_t> promised_{0};
};

inline SwapReservation::~SwapReservation() {
  if (room_ != nullptr) room_->promised_ -= blocks_;
}

}  // namespace penstock
