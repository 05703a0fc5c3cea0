#pragma once

#include <cstddef>
#include <memory>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

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

  // A hint: `next` is continued soon.
  static void Expect(const Fiber& next);

  // A fiber for the thread that calls Run; it has no stack of its own.
  static std::unique_ptr<Fiber> Caller();

  // The bounds of a stack, which AddressSanitizer must be told; for a caller's stack it tells us.
  struct Bounds {
    void (*entry)() = nullptr;
    const void* bottom = nullptr;
    size_t size = 0;
    void* fake_stack = nullptr;
  };

 private:
  struct OfCaller {};
  explicit Fiber(OfCaller) {}

  // Members rather than a pointer to them: a switch waits for each load of two threads' state.
#if defined(__x86_64__)
  void* stack_pointer_ = nullptr;
#else
  ucontext_t state_;
#endif
  Bounds bounds_;
  char* stack_ = nullptr;
};

}  // namespace penstock::cuda::emulator
