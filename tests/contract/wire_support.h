#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/tls/tls_identity.h"
#include "kernels/transfer_device.h"
#include "kvstore/wire/host/host_wire.h"
#include "kvstore/wire/wire.h"
#include "kvstore/wire/wire_budget.h"
#include "tests/contract/fake_nccl/fake_nccl.h"

namespace penstock {

// The header of a test message, from which its receiver can tell that the message is whole.
struct TestHeader {
  uint64_t number = 0;
  uint64_t size = 0;
  uint32_t crc = 0;
  uint32_t padding = 0;
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(this, 1)); }
};

struct TestMessage {
  TestHeader header;
  std::vector<std::byte> payload;
};
// Payload drawn from `number`.
TestMessage MakeMessage(uint64_t number, size_t size);

// Waits for `condition`, which is evaluated under `mutex` whenever `changed` is notified.
class Waiting {
 public:
  void Change(const std::function<void()>& change);
  // False after 60 s.
  [[nodiscard]] bool Wait(const std::function<bool()>& condition);

 private:
  Mutex mutex_;
  CondVar changed_;
};

// Keeps what happened to every message and checks it against what its header says.
class TestReceiver : public WireReceiver {
 public:
  enum class Event { kAnnounced, kLanded, kLost };
  struct Entry {
    TestHeader header;
    std::vector<std::byte> target;
    std::vector<Event> events;
    bool whole = false;
    bool scribbled_over = false;
  };

  absl::StatusOr<std::byte*> OnAnnounced(std::span<const std::byte> header, size_t size) override;
  void OnLanded(std::span<const std::byte> header, std::span<std::byte> payload) override;
  void OnLost(std::span<const std::byte> header, std::byte* target) override;

  // Called in OnAnnounced; an error refuses the message. Set before traffic.
  std::function<absl::Status(const TestHeader&)> on_announced;
  // While held, OnAnnounced does not return.
  void Hold();
  void Release();

  [[nodiscard]] bool WaitLanded(size_t count);
  [[nodiscard]] bool WaitAnnounced(size_t count);
  [[nodiscard]] bool WaitSettled();  // everything announced has landed or is lost
  size_t announced();
  size_t landed();
  size_t lost();
  std::vector<uint64_t> announcement_order();
  // Every message: announced, then landed whole or lost, and nothing written after it was lost.
  void ExpectSound();
  std::vector<std::thread::id> threads();

 private:
  Entry& Find(std::span<const std::byte> header);
  size_t Count(Event event) const;
  void NoteThread();

  Waiting waiting_;
  bool held_ = false;
  // By address: buffers of one number may come twice when a test sends it twice.
  std::vector<std::unique_ptr<Entry>> entries_;
  std::vector<std::thread::id> threads_;
};

// Counts the ends of Puts.
class TestSender {
 public:
  // The message lives here until the sender is gone.
  absl::Status Put(WireLane& lane, TestMessage message);
  [[nodiscard]] bool WaitDone(size_t count);
  size_t done();
  size_t count(absl::StatusCode code);
  std::vector<TestMessage*> messages();
  std::string last_message(absl::StatusCode code);
  std::vector<std::thread::id> threads();

 private:
  Waiting waiting_;
  std::vector<std::unique_ptr<TestMessage>> messages_;
  std::vector<int> ends_;
  std::vector<absl::Status> statuses_;
  std::vector<std::thread::id> threads_;
};

// One kind of wire under test.
struct WireKind {
  std::string name;
  std::string transport;
  // Wires of one maker reach each other.
  using Maker = std::function<std::unique_ptr<Wire>(WireReceiver&, const WireLimits&)>;
  std::function<Maker()> make;
  // Once its wires are gone: that it has kept what it owes to others.
  std::function<void()> expect_clean = [] {};
};
std::vector<WireKind> AllWireKinds();

// A wire with the lanes "auto", "tcp", "sealed" (TCP between members), "shm", "shm-gpu"
// or "nccl-gpu" (MakeGpuWire), "ucx" (over TCP), or "nccl": that is NCCL's fake on the emulated
// GPU. With "ucx" and "nccl", wires take each other to be on two hosts; with "nccl", lanes are
// given out when NCCL is ready.
absl::StatusOr<std::unique_ptr<Wire>> MakeTestWire(const std::string& lanes, WireReceiver& receiver,
                                                   const WireLimits& limits = {});
absl::StatusOr<std::unique_ptr<Wire>> MakeUcxWire(HostWireOptions options, WireReceiver& receiver);
// The transport of such lanes.
std::string TransportOf(const std::string& lanes);
// A member of one cluster, in this process and in those that it starts.
std::shared_ptr<TlsIdentity> TestIdentity();

// A GPU; there is one, or as many as PENSTOCK_EMULATED_GPUS says. Selects it.
std::shared_ptr<const TransferDevice> EmulatedGpu(int index = 0);
// The same wire, as if it were on another host: peers find no shared memory.
std::unique_ptr<Wire> Elsewhere(std::unique_ptr<Wire> wire);
// Controls the fake NCCL and reads its records; `library` is FAKE_NCCL or FAKE_NCCL_OLD.
class FakeNccl {
 public:
  explicit FakeNccl(const std::string& library = FAKE_NCCL);
  void Reset() const { reset_(); }
  void Inject(const char* fault, int64_t value) const { inject_(fault, value); }
  int64_t Count(const char* call) const { return count_(call); }
  std::string Violations() const { return violations_(); }
  int64_t Open() const { return open_(); }
  // Nothing open in the end, no violation.
  void ExpectClean() const;

 private:
  FakeNcclReset* reset_;
  FakeNcclInject* inject_;
  FakeNcclCount* count_;
  FakeNcclViolations* violations_;
  FakeNcclOpen* open_;
};

size_t OpenDescriptors();
size_t RunningThreads();

}  // namespace penstock
