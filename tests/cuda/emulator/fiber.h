#pragma once

#include <cstddef>
#include <memory>

namespace penstock::cuda::emulator {

// A stack of its own to run a function on. Switching is a dozen instructions: an emulated kernel
// does it millions of times.
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // `entry` never returns; it switches away for the last time instead.
  void Start(void (*entry)());

  // Goes on with `to` and comes back when something switches to `from`.
  static void Switch(Fiber& from, Fiber& to);

  struct Context;
  // A fiber for the thread that calls Run; it has no stack of its own.
  static std::unique_ptr<Fiber> Caller();

 private:
  explicit Fiber(std::unique_ptr<Context> context);
  std::unique_ptr<Context> context_;
};

}  // namespace penstock::cuda::emulator
