#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace penstock {

class SwapRoom;

// The right to swap a session out, whatever its answer's length. Gives it back when it goes.
// Move-only; must not outlive its room.
class SwapPromise {
 public:
  SwapPromise() = default;
  SwapPromise(SwapPromise&& other) noexcept
      : room_(std::exchange(other.room_, nullptr)), blocks_(other.blocks_) {}
  SwapPromise& operator=(SwapPromise&& other) noexcept {
    std::swap(room_, other.room_);
    std::swap(blocks_, other.blocks_);
    return *this;
  }
  ~SwapPromise();
  explicit operator bool() const { return room_ != nullptr; }
  int64_t blocks() const { return blocks_; }  // the most that the session may ever need

 private:
  friend class SwapRoom;
  SwapPromise(SwapRoom* room, int64_t blocks) : room_(room), blocks_(blocks) {}
  SwapRoom* room_ = nullptr;
  int64_t blocks_ = 0;
};

// How much of the DRAM tier may be needed for sessions that were admitted without blocks for their
// longest answers. Any thread.
class SwapRoom {
 public:
  explicit SwapRoom(int64_t blocks) : blocks_(blocks) {}

  // Empty when not so much is left.
  SwapPromise Promise(int64_t blocks) {
    if (promised_.fetch_add(blocks) + blocks <= blocks_) return {this, blocks};
    promised_ -= blocks;
    return {};
  }
  int64_t promised() const { return promised_; }

 private:
  friend class SwapPromise;
  const int64_t blocks_;
  std::atomic<int64_t> promised_{0};
};

inline SwapPromise::~SwapPromise() {
  if (room_ != nullptr) room_->promised_ -= blocks_;
}

}  // namespace penstock
