#include "tests/cuda/emulator/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <vector>

#include "base/check.h"

#if defined(__SANITIZE_ADDRESS__)
#define PENSTOCK_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PENSTOCK_ASAN 1
#endif
#endif
#ifdef PENSTOCK_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace penstock::cuda::emulator {
namespace {

// Stacks lie next to each other. Their size is not a power of two: the frames of all threads would
// then share a few sets of the processor's cache.
#ifdef PENSTOCK_ASAN
constexpr size_t kStackBytes = (256 << 10) - 2240;  // its frames are large
#else
constexpr size_t kStackBytes = (64 << 10) - 2240;
#endif

// Stacks of one host thread. Launches are frequent and new memory is slow, so stacks are reused.
// They lie in huge pages where the system has them, because each switch goes to another stack and
// would find its page in no TLB.
class Stacks {
 public:
  char* Take() {
    if (spare_.empty()) Grow();
    char* stack = spare_.back();
    spare_.pop_back();
    return stack;
  }
  void Return(char* stack) { spare_.push_back(stack); }

 private:
  static constexpr size_t kRegionBytes = 2 << 20;
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };

  void Grow() {
    auto* region = static_cast<char*>(std::aligned_alloc(kRegionBytes, kRegionBytes));
    PENSTOCK_CHECK(region != nullptr);
    madvise(region, kRegionBytes, MADV_HUGEPAGE);  // advice: without huge pages it is slower
    regions_.emplace_back(region);
    for (size_t at = 0; at + kStackBytes <= kRegionBytes; at += kStackBytes) {
      Guard(region + at);
      spare_.push_back(region + at);
    }
  }
  // An overflow would write to the frames of the stack below; AddressSanitizer reports it instead.
  static void Guard([[maybe_unused]] char* stack) {
#ifdef PENSTOCK_ASAN
    __asan_poison_memory_region(stack, 1024);
#endif
  }

  std::vector<std::unique_ptr<char, Free>> regions_;
  std::vector<char*> spare_;
};
thread_local Stacks stacks;

thread_local Fiber::Bounds* entering = nullptr;  // target of the last switch

#ifdef PENSTOCK_ASAN

thread_local Fiber::Bounds* left = nullptr;  // source of the last switch

// Forgets the frames of a stack whose outermost functions switched away and never returned.
void ForgetFrames(const char* stack, Fiber::Bounds& bounds, void (*entry)()) {
  constexpr size_t kOutermost = 8 << 10;
  __asan_unpoison_memory_region(stack + kStackBytes - kOutermost, kOutermost);
  bounds = {.entry = entry, .bottom = stack, .size = kStackBytes};
}
void Leave(Fiber::Bounds& from, Fiber::Bounds& to) {
  left = &from;
  entering = &to;
  __sanitizer_start_switch_fiber(&from.fake_stack, to.bottom, to.size);
}
void ComeBack(Fiber::Bounds& back) {
  __sanitizer_finish_switch_fiber(back.fake_stack, &left->bottom, &left->size);
}
void Arrive() {
  __sanitizer_finish_switch_fiber(nullptr, &left->bottom, &left->size);
  entering->entry();
}

#else

void ForgetFrames(const char*, Fiber::Bounds& bounds, void (*entry)()) { bounds.entry = entry; }
inline void Leave(Fiber::Bounds&, Fiber::Bounds& to) { entering = &to; }
inline void ComeBack(Fiber::Bounds&) {}
void Arrive() { entering->entry(); }

#endif

}  // namespace

#if defined(__x86_64__)

extern "C" void PenstockSwitchFiber(void** save, void* to);
// Saves the System V ABI's callee-saved registers, then exchanges the stack pointers.
asm(R"(
.text
.globl PenstockSwitchFiber
.type PenstockSwitchFiber, @function
PenstockSwitchFiber:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size PenstockSwitchFiber, . - PenstockSwitchFiber
)");

void Fiber::Start(void (*entry)()) {
  ForgetFrames(stack_, bounds_, entry);
  constexpr int kSavedRegisters = 6;
  const auto end = reinterpret_cast<uintptr_t>(stack_ + kStackBytes);
  auto** top = reinterpret_cast<void**>(end & ~uintptr_t{15});
  *--top = nullptr;  // the return address of `entry`; aligns its frame as a call does
  *--top = reinterpret_cast<void*>(&Arrive);
  for (int i = 0; i < kSavedRegisters; ++i) *--top = nullptr;
  stack_pointer_ = top;
}

void Fiber::Switch(Fiber& from, Fiber& to) {
  Leave(from.bounds_, to.bounds_);
  PenstockSwitchFiber(&from.stack_pointer_, to.stack_pointer_);
  ComeBack(from.bounds_);
}

void Fiber::Expect(const Fiber& next) {
  __builtin_prefetch(next.stack_pointer_);
  __builtin_prefetch(static_cast<const char*>(next.stack_pointer_) + 64);
  __builtin_prefetch(static_cast<const char*>(next.stack_pointer_) + 128);
}

#else

void Fiber::Expect(const Fiber&) {}

void Fiber::Start(void (*entry)()) {
  ForgetFrames(stack_, bounds_, entry);
  getcontext(&state_);
  state_.uc_stack.ss_sp = stack_;
  state_.uc_stack.ss_size = kStackBytes;
  state_.uc_link = nullptr;
  makecontext(&state_, &Arrive, 0);
}

void Fiber::Switch(Fiber& from, Fiber& to) {
  Leave(from.bounds_, to.bounds_);
  swapcontext(&from.state_, &to.state_);
  ComeBack(from.bounds_);
}

#endif

Fiber::Fiber() : stack_(stacks.Take()) {}
Fiber::~Fiber() {
  if (stack_ != nullptr) stacks.Return(stack_);
}

std::unique_ptr<Fiber> Fiber::Caller() { return std::unique_ptr<Fiber>(new Fiber(OfCaller{})); }

}  // namespace penstock::cuda::emulator
