#pragma once

#include <functional>
#include <memory>

#include "base/clock.h"

namespace penstock {

// Calls a function once, on one of gRPC's threads. Set replaces the previous setting. The caller
// must serialise Set and Clear; a callback that was just replaced may still run.
class Timer {
 public:
  Timer();
  ~Timer();
  void Set(Duration from_now, std::function<void()> fire);
  void Clear();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock
