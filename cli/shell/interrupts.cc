#include "cli/shell/interrupts.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/check.h"

namespace penstock {

Interrupts::Interrupts(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : signals) sigaddset(&set, number);
  PENSTOCK_CHECK_EQ(pthread_sigmask(SIG_BLOCK, &set, nullptr), 0);
  fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  PENSTOCK_CHECK_GE(fd_, 0);
}

Interrupts::~Interrupts() { close(fd_); }

int Interrupts::Take() {
  signalfd_siginfo info{};
  const bool any = read(fd_, &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info));
  return any ? static_cast<int>(info.ssi_signo) : 0;
}

int Interrupts::Wait(std::chrono::milliseconds timeout) {
  pollfd waiting = {.fd = fd_, .events = POLLIN, .revents = 0};
  poll(&waiting, 1, static_cast<int>(timeout.count()));
  return Take();
}

OnInterrupt::OnInterrupt(Interrupts& interrupts, std::function<void()> act)
    : wake_(eventfd(0, EFD_CLOEXEC)),
      thread_([this, &interrupts, act = std::move(act)] { Watch(interrupts, act); }) {}

OnInterrupt::~OnInterrupt() {
  Finish();
  close(wake_);
}

int OnInterrupt::Finish() {
  if (thread_.joinable()) {
    eventfd_write(wake_, 1);
    thread_.join();
  }
  return signal_;
}

void OnInterrupt::Watch(Interrupts& interrupts, const std::function<void()>& act) {
  pollfd waiting[2] = {{.fd = interrupts.fd(), .events = POLLIN, .revents = 0},
                       {.fd = wake_, .events = POLLIN, .revents = 0}};
  while (waiting[1].revents == 0) {
    if (poll(waiting, 2, -1) < 0) continue;
    if (waiting[0].revents == 0) continue;
    signal_ = interrupts.Take();
    if (signal_ != 0) {
      act();
      return;
    }
  }
}

void EndAtOnceAtSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

}  // namespace penstock
