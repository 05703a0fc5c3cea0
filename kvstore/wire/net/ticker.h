#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "base/status.h"
#include "kvstore/wire/loop.h"

namespace penstock {

// Calls a function of a wire's loop again and again while it is on. On the loop's thread.
class WireTicker {
 public:
  static absl::StatusOr<std::unique_ptr<WireTicker>> Create(WireLoop& loop,
                                                            std::chrono::milliseconds interval,
                                                            std::function<void()> on_tick);
  ~WireTicker();
  WireTicker(const WireTicker&) = delete;
  WireTicker& operator=(const WireTicker&) = delete;

  void Switch(bool on);

 private:
  WireTicker(WireLoop& loop, std::chrono::milliseconds interval, int fd)
      : loop_(loop), interval_(interval), fd_(fd) {}

  WireLoop& loop_;
  const std::chrono::milliseconds interval_;
  const int fd_;  // timerfd
  bool on_ = false;
};

}  // namespace penstock
