#include "kernels/cuda/fiber.h"

#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace penstock::cuda::emulator {
namespace {

constexpr size_t kStackBytes = 256 << 10;  // frames of sanitized builds are large

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
  std::vector<char> stack;
};

void Fiber::Start(void (*entry)()) {
  constexpr int kSavedRegisters = 6;
  const auto end = reinterpret_cast<uintptr_t>(context_->stack.data() + context_->stack.size());
  auto** top = reinterpret_cast<void**>(end & ~uintptr_t{15});
  *--top = nullptr;  // where `entry` would return to; aligns its frame as a call does
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < kSavedRegisters; ++i) *--top = nullptr;
  context_->stack_pointer = top;
}

void Fiber::Switch(Fiber& from, Fiber& to) {
  PenstockSwitchFiber(&from.context_->stack_pointer, to.context_->stack_pointer);
}

#else

struct Fiber::Context {
  ucontext_t state;
  std::vector<char> stack;
};

void Fiber::Start(void (*entry)()) {
  getcontext(&context_->state);
  context_->state.uc_stack.ss_sp = context_->stack.data();
  context_->state.uc_stack.ss_size = context_->stack.size();
  context_->state.uc_link = nullptr;
  makecontext(&context_->state, entry, 0);
}

void Fiber::Switch(Fiber& from, Fiber& to) {
  swapcontext(&from.context_->state, &to.context_->state);
}

#endif

Fiber::Fiber() : context_(std::make_unique<Context>()) { context_->stack.resize(kStackBytes); }
Fiber::Fiber(std::unique_ptr<Context> context) : context_(std::move(context)) {}
Fiber::~Fiber() = default;

std::unique_ptr<Fiber> Fiber::Caller() {
  return std::unique_ptr<Fiber>(new Fiber(std::make_unique<Context>()));
}

}  // namespace penstock::cuda::emulator
