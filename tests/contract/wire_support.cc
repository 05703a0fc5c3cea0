#include "tests/contract/wire_support.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <utility>

#include "base/crc32c.h"
#include "kernels/cuda/cuda_transfers.h"
#include "kvstore/wire/host/host_wire.h"
#include "kvstore/wire/net/address.h"
#include "kvstore/wire/wire_loopback.h"
#include "lab/fake/certificates.h"
#include "lab/fake/temp_folder.h"
#include "tests/contract/gpu_wire.h"
#include "tests/support/wait_until.h"

namespace penstock {

TestMessage MakeMessage(uint64_t number, size_t size) {
  TestMessage message;
  message.payload.resize(size);
  std::mt19937_64 random(number);
  for (size_t i = 0; i < size; i += 8) {
    const uint64_t word = random();
    std::memcpy(message.payload.data() + i, &word, std::min<size_t>(8, size - i));
  }
  message.header = {.number = number, .size = size, .crc = Crc32c(message.payload)};
  return message;
}

void Waiting::Change(const std::function<void()>& change) {
  MutexLock lock(mutex_);
  change();
  changed_.NotifyAll();
}

bool Waiting::Wait(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  MutexLock lock(mutex_);
  while (!condition()) {
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left.count() <= 0) return false;
    changed_.WaitFor(mutex_, left);
  }
  return true;
}

absl::StatusOr<std::byte*> TestReceiver::OnAnnounced(std::span<const std::byte> header,
                                                     size_t size) {
  EXPECT_EQ(header.size(), sizeof(TestHeader));
  TestHeader parsed;
  std::memcpy(&parsed, header.data(), sizeof(parsed));
  EXPECT_EQ(parsed.size, size);
  if (on_announced) RETURN_IF_ERROR(on_announced(parsed));
  auto entry = std::make_unique<Entry>();
  entry->header = parsed;
  entry->target.resize(size + 1);  // One more: even an empty payload has an address of its own.
  entry->events.push_back(Event::kAnnounced);
  std::byte* target = entry->target.data();
  waiting_.Change([&] {
    NoteThread();
    entries_.push_back(std::move(entry));
  });
  EXPECT_TRUE(waiting_.Wait([&] { return !held_; }));
  return target;
}

TestReceiver::Entry& TestReceiver::Find(std::span<const std::byte> header) {
  TestHeader parsed;
  std::memcpy(&parsed, header.data(), std::min(header.size(), sizeof(parsed)));
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const std::unique_ptr<Entry>& entry) {
        return entry->header.number == parsed.number && entry->events.size() == 1;
      });
  if (found == entries_.end()) {
    ADD_FAILURE() << "message " << parsed.number << " was not announced, or has ended before";
    static Entry nobody;
    return nobody;
  }
  return **found;
}

void TestReceiver::OnLanded(std::span<const std::byte> header, std::span<std::byte> payload) {
  const uint32_t crc = Crc32c(payload);
  waiting_.Change([&] {
    NoteThread();
    Entry& entry = Find(header);
    entry.events.push_back(Event::kLanded);
    entry.whole = payload.data() == entry.target.data() && payload.size() == entry.header.size &&
                  crc == entry.header.crc;
  });
}

void TestReceiver::OnLost(std::span<const std::byte> header, std::byte* target) {
  waiting_.Change([&] {
    NoteThread();
    Entry& entry = Find(header);
    EXPECT_EQ(entry.target.data(), target);
    entry.events.push_back(Event::kLost);
    // From now on nothing may write here.
    std::fill(entry.target.begin(), entry.target.end(), std::byte{0xd5});
  });
}

void TestReceiver::NoteThread() {
  const auto id = std::this_thread::get_id();
  if (std::find(threads_.begin(), threads_.end(), id) == threads_.end()) threads_.push_back(id);
}

void TestReceiver::Hold() {
  waiting_.Change([&] { held_ = true; });
}
void TestReceiver::Release() {
  waiting_.Change([&] { held_ = false; });
}

size_t TestReceiver::Count(Event event) const {
  return static_cast<size_t>(
      std::count_if(entries_.begin(), entries_.end(), [&](const std::unique_ptr<Entry>& entry) {
        return std::count(entry->events.begin(), entry->events.end(), event) > 0;
      }));
}

bool TestReceiver::WaitLanded(size_t count) {
  return waiting_.Wait([&] { return Count(Event::kLanded) >= count; });
}
bool TestReceiver::WaitAnnounced(size_t count) {
  return waiting_.Wait([&] { return entries_.size() >= count; });
}
bool TestReceiver::WaitSettled() {
  return waiting_.Wait([&] {
    return std::all_of(entries_.begin(), entries_.end(),
                       [](const auto& entry) { return entry->events.size() >= 2; });
  });
}

size_t TestReceiver::announced() {
  size_t count = 0;
  waiting_.Change([&] { count = entries_.size(); });
  return count;
}
size_t TestReceiver::landed() {
  size_t count = 0;
  waiting_.Change([&] { count = Count(Event::kLanded); });
  return count;
}
size_t TestReceiver::lost() {
  size_t count = 0;
  waiting_.Change([&] { count = Count(Event::kLost); });
  return count;
}

std::vector<uint64_t> TestReceiver::announcement_order() {
  std::vector<uint64_t> numbers;
  waiting_.Change([&] {
    for (const auto& entry : entries_) numbers.push_back(entry->header.number);
  });
  return numbers;
}

void TestReceiver::ExpectSound() {
  waiting_.Change([&] {
    for (const auto& entry : entries_) {
      ASSERT_EQ(entry->events.size(), 2u) << "message " << entry->header.number;
      if (entry->events[1] == Event::kLanded) {
        EXPECT_TRUE(entry->whole) << "message " << entry->header.number << " landed torn";
      } else {
        EXPECT_TRUE(std::all_of(entry->target.begin(), entry->target.end(),
                                [](std::byte b) { return b == std::byte{0xd5}; }))
            << "message " << entry->header.number << " was written to after it was lost";
      }
    }
  });
}

std::vector<std::thread::id> TestReceiver::threads() {
  std::vector<std::thread::id> copy;
  waiting_.Change([&] { copy = threads_; });
  return copy;
}

absl::Status TestSender::Put(WireLane& lane, TestMessage message) {
  auto owned = std::make_unique<TestMessage>(std::move(message));
  TestMessage& kept = *owned;
  size_t index = 0;
  waiting_.Change([&] {
    index = messages_.size();
    messages_.push_back(std::move(owned));
    ends_.push_back(0);
  });
  return lane.Put(kept.header.bytes(), kept.payload, [this, index](const absl::Status& status) {
    waiting_.Change([&] {
      EXPECT_EQ(++ends_[index], 1) << "a Put ended twice";
      statuses_.push_back(status);
      threads_.push_back(std::this_thread::get_id());
    });
  });
}

bool TestSender::WaitDone(size_t count) {
  return waiting_.Wait([&] { return statuses_.size() >= count; });
}

size_t TestSender::done() {
  size_t count = 0;
  waiting_.Change([&] { count = statuses_.size(); });
  return count;
}

size_t TestSender::count(absl::StatusCode code) {
  size_t count = 0;
  waiting_.Change([&] {
    for (const absl::Status& status : statuses_) count += status.code() == code ? 1 : 0;
  });
  return count;
}

std::vector<TestMessage*> TestSender::messages() {
  std::vector<TestMessage*> list;
  waiting_.Change([&] {
    for (const auto& message : messages_) list.push_back(message.get());
  });
  return list;
}

std::string TestSender::last_message(absl::StatusCode code) {
  std::string text;
  waiting_.Change([&] {
    for (const absl::Status& status : statuses_) {
      if (status.code() == code) text = Message(status);
    }
  });
  return text;
}

std::vector<std::thread::id> TestSender::threads() {
  std::vector<std::thread::id> copy;
  waiting_.Change([&] { copy = threads_; });
  return copy;
}

std::shared_ptr<const TransferDevice> EmulatedGpu(int index) {
  auto device = cuda::CudaDevice::Open(index);
  EXPECT_TRUE(device.ok()) << device.status();
  return cuda::MakeTransferDevice(**device);
}

namespace {

class ElsewhereWire final : public Wire {
 public:
  explicit ElsewhereWire(std::unique_ptr<Wire> wire) : wire_(std::move(wire)) {}
  std::string address() const override {
    auto address = ParseWireAddress(wire_->address());
    EXPECT_TRUE(address.ok()) << address.status();
    address->host = "elsewhere";
    return FormatWireAddress(*address);
  }
  absl::StatusOr<std::unique_ptr<WireLane>> Connect(const std::string& address,
                                                    int64_t timeout_ms) override {
    return wire_->Connect(address, timeout_ms);
  }
  bool TakesDeviceMemory() const override { return wire_->TakesDeviceMemory(); }

 private:
  const std::unique_ptr<Wire> wire_;
};

// Lanes of which are given out when NCCL is ready, which others learn from transport().
class NcclWire final : public Wire {
 public:
  explicit NcclWire(std::unique_ptr<Wire> wire) : wire_(std::move(wire)) {}
  std::string address() const override { return wire_->address(); }
  absl::StatusOr<std::unique_ptr<WireLane>> Connect(const std::string& address,
                                                    int64_t timeout_ms) override {
    ASSIGN_OR_RETURN(auto lane, wire_->Connect(address, timeout_ms));
    EXPECT_TRUE(WaitUntil([&] { return lane->transport() == "nccl"; }));
    return lane;
  }

 private:
  const std::unique_ptr<Wire> wire_;
};

template <class Function>
Function* Find(void* library, const char* name) {
  auto* found = reinterpret_cast<Function*>(dlsym(library, name));
  EXPECT_NE(found, nullptr) << name;
  return found;
}

WireKind HostKind(const std::string& lanes) {
  return {lanes, TransportOf(lanes), [lanes] {
            return [lanes](WireReceiver& receiver, const WireLimits& limits) {
              auto wire = MakeTestWire(lanes, receiver, limits);
              EXPECT_TRUE(wire.ok()) << wire.status();
              return *std::move(wire);
            };
          }};
}

size_t CountEntries(const std::string& directory) {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    count += entry.path().empty() ? 0 : 1;
  }
  return count;
}

}  // namespace

std::vector<WireKind> AllWireKinds() {
  const WireKind loopback{"loopback", "loopback", [] {
                            auto hub = std::make_shared<LoopbackHub>();
                            return [hub](WireReceiver& receiver, const WireLimits& limits) {
                              return MakeLoopbackWire(*hub, receiver, limits);
                            };
                          }};
  WireKind nccl = HostKind("nccl"), nccl_gpu = HostKind("nccl-gpu");
  nccl.expect_clean = nccl_gpu.expect_clean = [] { FakeNccl().ExpectClean(); };
  return {loopback,
          HostKind("shm"),
          HostKind("shm-gpu"),
          HostKind("tcp"),
          HostKind("sealed"),
          HostKind("ucx"),
          nccl,
          nccl_gpu};
}

std::unique_ptr<Wire> Elsewhere(std::unique_ptr<Wire> wire) {
  return std::make_unique<ElsewhereWire>(std::move(wire));
}

absl::StatusOr<std::unique_ptr<Wire>> MakeTestWire(const std::string& lanes, WireReceiver& receiver,
                                                   const WireLimits& limits) {
  if (lanes == "shm-gpu") return MakeGpuWire(receiver, {.lanes = "shm", .limits = limits});
  if (lanes == "nccl-gpu") {
    return MakeGpuWire(
        receiver,
        {.listen = "127.0.0.1", .lanes = "nccl", .limits = limits, .nccl = {.library = FAKE_NCCL}});
  }
  HostWireOptions options{.listen = "127.0.0.1", .lanes = lanes, .limits = limits};
  if (lanes == "sealed") {
    options.lanes = "tcp";
    options.identity = TestIdentity();
  }
  if (lanes == "ucx") return MakeUcxWire(options, receiver);
  if (lanes != "nccl") return MakeHostWire(options, receiver);
  options.gpu = EmulatedGpu();
  options.nccl.library = FAKE_NCCL;
  ASSIGN_OR_RETURN(auto wire, MakeHostWire(options, receiver));
  return std::make_unique<NcclWire>(Elsewhere(std::move(wire)));
}

absl::StatusOr<std::unique_ptr<Wire>> MakeUcxWire(HostWireOptions options, WireReceiver& receiver) {
  setenv("UCX_TLS", "tcp", /*overwrite=*/0);
  options.lanes = "ucx";
  ASSIGN_OR_RETURN(auto wire, MakeHostWire(options, receiver));
  return Elsewhere(std::move(wire));
}

std::string TransportOf(const std::string& lanes) {
  if (lanes == "shm") return "shared memory";
  if (lanes == "shm-gpu") return "shared memory, from GPU memory";
  if (lanes == "nccl-gpu") return "nccl, from GPU memory";
  if (lanes == "sealed") return "tcp, sealed";
  return lanes == "ucx" ? "tcp" : lanes;
}

std::shared_ptr<TlsIdentity> TestIdentity() {
  constexpr char kFolder[] = "PENSTOCK_TEST_IDENTITY";
  if (std::getenv(kFolder) == nullptr) {
    static const TempFolder folder;
    const TestCa ca("cluster");
    WriteIdentity(folder.path(), ca, ca.Issue("worker"));
    setenv(kFolder, folder.path().c_str(), 1);
  }
  auto identity = TlsIdentity::Open(FilesIn(std::getenv(kFolder)), TlsUse::kMember);
  EXPECT_TRUE(identity.ok()) << identity.status();
  return *std::move(identity);
}

FakeNccl::FakeNccl(const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  EXPECT_NE(handle, nullptr) << dlerror();
  reset_ = Find<FakeNcclReset>(handle, "fake_nccl_reset");
  inject_ = Find<FakeNcclInject>(handle, "fake_nccl_inject");
  count_ = Find<FakeNcclCount>(handle, "fake_nccl_count");
  violations_ = Find<FakeNcclViolations>(handle, "fake_nccl_violations");
  open_ = Find<FakeNcclOpen>(handle, "fake_nccl_open");
}

void FakeNccl::ExpectClean() const {
  // Close waits for NCCL for a limited time only. A thread of the lane may close the rest later.
  EXPECT_TRUE(WaitUntil([&] { return Open() == 0; })) << Open();
  EXPECT_EQ(Violations(), "");
}

size_t OpenDescriptors() { return CountEntries("/proc/self/fd"); }

// A thread that has been joined stands in /proc for a moment longer. The kernel marks it as exiting
// before the join returns, so it is not counted.
size_t RunningThreads() {
  constexpr uint64_t kExiting = 4;  // PF_EXITING of include/linux/sched.h
  size_t count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "stat");
    std::string stat;
    if (!std::getline(file, stat)) continue;  // gone meanwhile
    // The name, in parentheses, may have spaces; the flags are the seventh field behind it.
    std::istringstream fields(stat.substr(stat.rfind(')') + 1));
    std::string skipped;
    for (int i = 0; i < 6; ++i) fields >> skipped;
    uint64_t flags = 0;
    EXPECT_TRUE(fields >> flags) << stat;
    if ((flags & kExiting) == 0) ++count;
  }
  return count;
}

}  // namespace penstock
