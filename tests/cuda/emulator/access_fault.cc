#include "tests/cuda/emulator/access_fault.h"

#include <execinfo.h>
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/check.h"

namespace penstock::cuda::emulator {
namespace {

AccessFault (*fault_of)(const void* p) = nullptr;
struct sigaction handler_before;

const char* KindOf([[maybe_unused]] const void* context) {
#if defined(__x86_64__)
  constexpr greg_t kWrite = 2;  // a bit of the page fault's error code
  const auto* const machine = static_cast<const ucontext_t*>(context);
  return (machine->uc_mcontext.gregs[REG_ERR] & kWrite) != 0 ? "wrote" : "read";
#else
  return "accessed";
#endif
}

void Report(const AccessFault& fault, const siginfo_t& info, const void* context) {
  char by[64] = "host code";
  if (fault.by >= 0) std::snprintf(by, sizeof(by), "work of emulated device %d", fault.by);
  char text[192];
  const int length = std::snprintf(text, sizeof(text), "%s %s memory of emulated device %d at %p\n",
                                   by, KindOf(context), fault.device, info.si_addr);
  [[maybe_unused]] const auto written =
      write(STDERR_FILENO, text, std::min(sizeof(text) - 1, static_cast<size_t>(length)));
  void* callers[32];
  backtrace_symbols_fd(callers, backtrace(callers, 32), STDERR_FILENO);
}

void OnFault(int signal, siginfo_t* info, void* context) {
  const AccessFault fault = fault_of(info->si_addr);
  if (fault.device >= 0) {
    Report(fault, *info, context);
    std::abort();
  }
  sigaction(signal, &handler_before, nullptr);  // The access happens again after the return.
}

}  // namespace

void ReportAccessFaults(AccessFault (*fault_at)(const void* p)) {
  fault_of = fault_at;
  struct sigaction action {};
  sigaction(SIGSEGV, nullptr, &action);
  if ((action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == &OnFault) return;
  action = {};
  action.sa_sigaction = &OnFault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  PENSTOCK_CHECK_EQ(sigaction(SIGSEGV, &action, &handler_before), 0);
}

}  // namespace penstock::cuda::emulator
