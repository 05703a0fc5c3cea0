#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>

#include "worker/engine/ticker.h"

namespace penstock {

// Reports when a loop has stalled and when it goes on. It counts its own checks instead of time, so
// that a process that was suspended as a whole does not look stalled. `on_change` is called on the
// watchdog's own thread. Any thread.
class Watchdog {
 public:
  // A loop whose `beats` stay the same for `patience` is stalled. `beats` may switch to another
  // loop's between two checks.
  Watchdog(std::function<uint64_t()> beats, Duration patience,
           std::function<void(bool stalled)> on_change)
      : beats_(std::move(beats)),
        on_change_(std::move(on_change)),
        seen_(beats_()),
        ticker_(patience / kLooks, [this] { Look(); }) {}

  bool stalled() const { return stalled_; }

 private:
  static constexpr int kLooks = 10;

  void Look() {
    const uint64_t beats = beats_();
    quiet_looks_ = beats == seen_ ? quiet_looks_ + 1 : 0;
    seen_ = beats;
    const bool stalled = quiet_looks_ >= kLooks;
    if (stalled_.exchange(stalled) != stalled) on_change_(stalled);
  }

  const std::function<uint64_t()> beats_;
  const std::function<void(bool)> on_change_;
  std::atomic<bool> stalled_{false};
  // Used by the ticker's thread only.
  uint64_t seen_;
  int quiet_looks_ = 0;
  Ticker ticker_;  // last: it uses the rest
};

}  // namespace penstock
