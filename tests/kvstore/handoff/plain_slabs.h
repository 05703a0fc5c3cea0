#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>

namespace penstock {

// Watches the kernels of plain_slabs.cc while it lives; one at a time.
class PlainSlabs {
 public:
  PlainSlabs();
  ~PlainSlabs();

  // While held, gathers and sums do not come to their end.
  void Hold();
  void Release();
  void AwaitHeld();  // until one is under way

  void OnMove(bool scatter);
  std::atomic<int> moves{0};

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
  int waiting_ = 0;
};

}  // namespace penstock
