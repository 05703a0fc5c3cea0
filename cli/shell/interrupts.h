#pragma once

#include <chrono>
#include <functional>
#include <initializer_list>
#include <thread>

namespace penstock {

// Signals of this process, taken as data. BlockShutdownSignals comes first; what else is listed is
// blocked here. One at a time a process; a signal goes to the first thread that takes it.
class Interrupts {
 public:
  Interrupts(std::initializer_list<int> signals);
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // Readable when a signal waits.
  int fd() const { return fd_; }
  // The next signal, or 0 when none waits.
  int Take();
  // Waits for the next signal; 0 when `timeout` passes first.
  int Wait(std::chrono::milliseconds timeout);

 private:
  int fd_;
};

// While it lives, the next signal calls `act`, once, on a thread of its own.
class OnInterrupt {
 public:
  OnInterrupt(Interrupts& interrupts, std::function<void()> act);
  ~OnInterrupt();
  OnInterrupt(const OnInterrupt&) = delete;
  OnInterrupt& operator=(const OnInterrupt&) = delete;

  // Ends the watch and returns the signal that came, or 0.
  int Finish();

 private:
  void Watch(Interrupts& interrupts, const std::function<void()>& act);

  int wake_;  // an eventfd that ends the watch
  int signal_ = 0;
  std::thread thread_;
};

// For commands that leave nothing behind that outlives them: SIGINT and SIGTERM end the process
// where it is.
void EndAtOnceAtSignals();

}  // namespace penstock
