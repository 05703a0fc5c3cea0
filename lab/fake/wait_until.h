#pragma once

#include <chrono>
#include <thread>

namespace penstock {

// Waits for a condition that other threads bring about. False when it has not come in 20 s.
template <class Condition>
bool WaitUntil(const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace penstock
