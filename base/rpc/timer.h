#pragma once

#include <functional>
#include <memory>

#include "base/clock.h"

namespace penstock {

// Calls back once, on one of gRPC's threads. Setting it again replaces what was set. The caller
// locks around Set; a callback that was just replaced may still come.
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
