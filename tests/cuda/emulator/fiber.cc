#include "tests/cuda/emulator/fiber.h"

#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

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

constexpr size_t kStackBytes = 256 << 10;  // frames of sanitized builds are large

// Launches are many, and new memory is slow: stacks are used again.
thread_local std::vector<std::unique_ptr<char[]>> spare_stacks;

// The bounds of a stack, which AddressSanitizer must be told; for a caller's stack it tells us.
struct FiberBounds {
  void (*entry)() = nullptr;
  const void* bottom = nullptr;
  size_t size = 0;
  void* fake_stack = nullptr;
};
thread_local FiberBounds* entering = nullptr;  // what the last switch went to

#ifdef PENSTOCK_ASAN

thread_local FiberBounds* left = nullptr;  // what it came from

// Forgets the frames of a stack whose outermost functions switched away and never returned.
void ForgetFrames(const char* stack, FiberBounds& bounds, void (*entry)()) {
  constexpr size_t kOutermost = 8 << 10;
  __asan_unpoison_memory_region(stack + kStackBytes - kOutermost, kOutermost);
  bounds = {.entry = entry, .bottom = stack, .size = kStackBytes};
}
void Leave(FiberBounds& from, FiberBounds& to) {
  left = &from;
  entering = &to;
  __sanitizer_start_switch_fiber(&from.fake_stack, to.bottom, to.size);
}
void ComeBack(FiberBounds& back) {
  __sanitizer_finish_switch_fiber(back.fake_stack, &left->bottom, &left->size);
}
void Arrive() {
  __sanitizer_finish_switch_fiber(nullptr, &left->bottom, &left->size);
  entering->entry();
}

#else

void ForgetFrames(const char*, FiberBounds& bounds, void (*entry)()) { bounds.entry = entry; }
inline void Leave(FiberBounds&, FiberBounds& to) { entering = &to; }
inline void ComeBack(FiberBounds&) {}
void Arrive() { entering->entry(); }

#endif

}  // namespace

#if defined(__x86_64__)

extern "C" void PenstockSwitchFiber(void** save, void* to);
// The System V ABI's callee-saved registers, then the stack pointers.
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

struct Fiber::Context {
  void* stack_pointer = nullptr;
  std::unique_ptr<char[]> stack;
  FiberBounds bounds;
};

void Fiber::Start(void (*entry)()) {
  ForgetFrames(context_->stack.get(), context_->bounds, entry);
  constexpr int kSavedRegisters = 6;
  const auto end = reinterpret_cast<uintptr_t>(context_->stack.get() + kStackBytes);
  auto** top = reinterpret_cast<void**>(end & ~uintptr_t{15});
  *--top = nullptr;  // where `entry` would return to; aligns its frame as a call does
  *--top = reinterpret_cast<void*>(&Arrive);
  for (int i = 0; i < kSavedRegisters; ++i) *--top = nullptr;
  context_->stack_pointer = top;
}

void Fiber::Switch(Fiber& from, Fiber& to) {
  Leave(from.context_->bounds, to.context_->bounds);
  PenstockSwitchFiber(&from.context_->stack_pointer, to.context_->stack_pointer);
  ComeBack(from.context_->bounds);
}

#else

struct Fiber::Context {
  ucontext_t state;
  std::unique_ptr<char[]> stack;
  FiberBounds bounds;
};

void Fiber::Start(void (*entry)()) {
  ForgetFrames(context_->stack.get(), context_->bounds, entry);
  getcontext(&context_->state);
  context_->state.uc_stack.ss_sp = context_->stack.get();
  context_->state.uc_stack.ss_size = kStackBytes;
  context_->state.uc_link = nullptr;
  makecontext(&context_->state, &Arrive, 0);
}

void Fiber::Switch(Fiber& from, Fiber& to) {
  Leave(from.context_->bounds, to.context_->bounds);
  swapcontext(&from.context_->state, &to.context_->state);
  ComeBack(from.context_->bounds);
}

#endif

Fiber::Fiber() : context_(std::make_unique<Context>()) {
  if (spare_stacks.empty()) {
    context_->stack.reset(new char[kStackBytes]);
  } else {
    context_->stack = std::move(spare_stacks.back());
    spare_stacks.pop_back();
  }
}
Fiber::Fiber(std::unique_ptr<Context> context) : context_(std::move(context)) {}
Fiber::~Fiber() {
  if (context_->stack != nullptr) spare_stacks.push_back(std::move(context_->stack));
}

std::unique_ptr<Fiber> Fiber::Caller() {
  return std::unique_ptr<Fiber>(new Fiber(std::make_unique<Context>()));
}

}  // namespace penstock::cuda::emulator
