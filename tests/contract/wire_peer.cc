// The other process of wire_kill_test: a wire that receives, or sends, until it is killed. Prints
// its address on one line; with --send it then reads the address to send to.
//   wire_peer LANES [--send] [--die-on-announce N] [--die-on-done N]

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

#include "base/log/log.h"
#include "base/mutex.h"
#include "tests/contract/wire_support.h"

namespace penstock {
namespace {

constexpr size_t kMessageBytes = size_t{8} << 20;

[[noreturn]] void Die() {
  kill(getpid(), SIGKILL);
  _exit(1);
}

class DyingReceiver final : public WireReceiver {
 public:
  explicit DyingReceiver(int die_on_announce) : left_(die_on_announce) {}
  absl::StatusOr<std::byte*> OnAnnounced(std::span<const std::byte>, size_t size) override {
    if (left_ > 0 && --left_ == 0) Die();
    return new std::byte[size];
  }
  void OnLanded(std::span<const std::byte>, std::span<std::byte> payload) override {
    delete[] payload.data();
  }
  void OnLost(std::span<const std::byte>, std::byte* target) override { delete[] target; }

 private:
  int left_;
};

// Keeps eight messages under way.
void SendForever(Wire& wire, int die_on_done) {
  std::string address;
  std::getline(std::cin, address);
  auto lane = wire.Connect(address, 10'000);
  if (!lane.ok()) Die();
  Mutex mutex;
  CondVar changed;
  int under_way = 0;
  int done = 0;
  std::vector<TestMessage> messages;
  for (uint64_t i = 0; i < 8; ++i) messages.push_back(MakeMessage(i, kMessageBytes));
  for (uint64_t number = 0;; ++number) {
    {
      MutexLock lock(mutex);
      while (under_way == 8) changed.Wait(mutex);
      ++under_way;
    }
    TestMessage& message = messages[number % 8];
    const auto put =
        (*lane)->Put(message.header.bytes(), message.payload, [&](const absl::Status& status) {
          if (!status.ok() || ++done == die_on_done) Die();
          MutexLock lock(mutex);
          --under_way;
          changed.NotifyAll();
        });
    if (!put.ok()) Die();
  }
}

int Main(int argc, char** argv) {
  bool send = false;
  int die_on_announce = 0;
  int die_on_done = 0;
  for (int i = 2; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--send") send = true;
    if (flag == "--die-on-announce") die_on_announce = std::atoi(argv[++i]);
    if (flag == "--die-on-done") die_on_done = std::atoi(argv[++i]);
  }
  StartLogging({});  // on standard error: standard output is for the address
  DyingReceiver receiver(die_on_announce);
  auto wire = MakeTestWire(argv[1], receiver);
  if (!wire.ok()) return 1;
  std::cout << (*wire)->address() << std::endl;
  if (send) SendForever(**wire, die_on_done);
  std::string line;
  std::getline(std::cin, line);  // Until the test closes our input.
  return 0;
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) { return penstock::Main(argc, argv); }
