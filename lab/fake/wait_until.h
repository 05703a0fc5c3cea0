#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace penstock {

// Waits for a condition that other threads or processes bring about. False when it still does not
// hold after `limit`. It looks every millisecond at first and every 10 ms in a longer wait.
template <class Condition>
bool WaitUntil(const Condition& condition,
               std::chrono::milliseconds limit = std::chrono::seconds(20)) {
  constexpr std::chrono::milliseconds kPauseMax(10);
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (auto pause = std::chrono::milliseconds(1); !condition();
       pause = std::min(2 * pause, kPauseMax)) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(pause);
  }
  return true;
}

}  // namespace penstock
