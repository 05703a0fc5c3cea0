#pragma once

#include <cstddef>
#include <memory>

namespace penstock::cuda::emulator {

// Owns a stack to run a function on. A switch takes a dozen instructions, because an emulated
// kernel switches millions of times. Used by one host thread.
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // `entry` must never return; it switches away for the last time instead.
  void Start(void (*entry)());

  // Continues `to`; returns when some fiber switches to `from`.
  static void Switch(Fiber& from, Fiber& to);

  struct Context;
  // A fiber for the thread that calls Run; it has no stack of its own.
  static std::unique_ptr<Fiber> Caller();

 private:
  explicit Fiber(std::unique_ptr<Context> context);
  std::unique_ptr<Context> context_;
};

}  // namespace penstock::cuda::emulator
