#include "base/thread_stack.h"

#include <absl/debugging/symbolize.h>
#include <execinfo.h>
#include <fmt/format.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "base/check.h"

namespace penstock {
namespace {

constexpr int kFramesMax = 64;

// Written by the thread that is asked.
struct StackAnswer {
  void* frames[kFramesMax];
  int count = 0;
  sem_t written;
};

int StackSignal() { return SIGRTMIN + 1; }

// Safe in a signal handler: backtrace() has been called before, so it loads no library, and it
// finds the tables of the unwinder without locks (glibc 2.35 and libgcc 12).
void OnStackSignal(int, siginfo_t* info, void*) {
  if (info->si_code != SI_QUEUE || info->si_pid != getpid()) return;
  const int error = errno;
  auto* const answer = static_cast<StackAnswer*>(info->si_value.sival_ptr);
  answer->count = backtrace(answer->frames, kFramesMax);
  sem_post(&answer->written);
  errno = error;
}

void Prepare() {
  void* frames[4];
  PENSTOCK_CHECK(backtrace(frames, 4) > 0);
  struct sigaction action {};
  action.sa_sigaction = OnStackSignal;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigaction(StackSignal(), &action, nullptr);
}

bool Ask(pid_t thread, StackAnswer* answer) {
  siginfo_t info{};
  info.si_signo = StackSignal();
  info.si_code = SI_QUEUE;
  info.si_pid = getpid();
  info.si_uid = getuid();
  info.si_value.sival_ptr = answer;
  return syscall(SYS_rt_tgsigqueueinfo, getpid(), thread, StackSignal(), &info) == 0;
}

bool AwaitAnswer(StackAnswer* answer, Duration limit) {
  const int64_t ns = std::chrono::duration_cast<std::chrono::nanoseconds>(limit).count();
  timespec end{};
  clock_gettime(CLOCK_REALTIME, &end);
  end.tv_sec += ns / 1'000'000'000;
  end.tv_nsec += ns % 1'000'000'000;
  if (end.tv_nsec >= 1'000'000'000) {
    ++end.tv_sec;
    end.tv_nsec -= 1'000'000'000;
  }
  int result = 0;
  do {
    result = sem_timedwait(&answer->written, &end);
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

std::string NameOfFrame(void* address) {
  // A return address belongs to the instruction behind the call.
  const auto at = reinterpret_cast<uintptr_t>(address) - 1;
  char name[512];
  if (absl::Symbolize(reinterpret_cast<void*>(at), name, sizeof name)) return name;
  void* const frames[] = {address};
  char** const texts = backtrace_symbols(frames, 1);  // "FILE(+OFFSET) [ADDRESS]"
  std::string text = texts == nullptr ? fmt::format("{:#x}", at) : texts[0];
  free(texts);
  return text;
}

}  // namespace

std::optional<pid_t> FindThread(std::string_view name) {
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    std::ifstream file(task.path() / "comm");
    std::string comm;
    if (!std::getline(file, comm) || comm != name) continue;
    const std::string id = task.path().filename().string();
    pid_t thread = 0;
    if (std::from_chars(id.data(), id.data() + id.size(), thread).ec == std::errc()) return thread;
  }
  return std::nullopt;
}

std::vector<std::string> StackOf(pid_t thread, Duration limit) {
  static const bool prepared = [] {
    Prepare();
    return true;
  }();
  PENSTOCK_CHECK(prepared);
  auto* const answer = new StackAnswer;
  sem_init(&answer->written, 0, 0);
  const bool asked = Ask(thread, answer);
  // A thread that answers too late still writes: it keeps the memory.
  if (asked && !AwaitAnswer(answer, limit)) return {};
  std::vector<std::string> frames;
  // The first frames are the handler and the kernel's return from it.
  for (int i = 2; i < answer->count; ++i) frames.push_back(NameOfFrame(answer->frames[i]));
  sem_destroy(&answer->written);
  delete answer;
  return frames;
}

}  // namespace penstock
