// Lanes within one host over the emulated GPU's memory: what a peer may name and place there, and
// what happens when an allocation comes, goes or cannot be mapped. The contract of all wires is
// wire_contract_test.cc's matter.

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>

#include "kvstore/wire/host/host_wire.h"
#include "kvstore/wire/net/address.h"
#include "kvstore/wire/net/device_probe.h"
#include "kvstore/wire/net/socket.h"
#include "kvstore/wire/same_host/gpu_exports.h"
#include "tests/contract/device_receiver.h"
#include "tests/contract/wire_support.h"
#include "tests/support/captured_output.h"
#include "tests/support/environment.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

std::unique_ptr<Wire> MakeWire(WireReceiver& receiver, std::shared_ptr<const TransferDevice> gpu) {
  auto wire =
      MakeHostWire({.lanes = "shm", .limits = {}, .same_host_gpu = std::move(gpu)}, receiver);
  EXPECT_TRUE(wire.ok()) << wire.status();
  return *std::move(wire);
}

// Memory of the GPU that holds one message.
class Slab {
 public:
  explicit Slab(size_t bytes = kMiB) : bytes_(bytes), data_(gpu_->AllocateForWires(bytes)) {}
  ~Slab() { gpu_->FreeForWires(data_, bytes_); }
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  std::byte* data() const { return data_; }
  // Sends the message from here; waits for its end.
  absl::Status Send(WireLane& lane, const TestMessage& message) const {
    std::ranges::copy(message.payload, cuda::emulator::SeenByHardware(data_));
    absl::Status end;
    bool ended = false;
    Waiting waiting;
    RETURN_IF_ERROR(lane.PutFromDevice(message.header.bytes(), {data_, message.payload.size()},
                                       [&](const absl::Status& status) {
                                         waiting.Change([&] {
                                           end = status;
                                           ended = true;
                                         });
                                       }));
    EXPECT_TRUE(waiting.Wait([&] { return ended; }));
    return end;
  }

 private:
  const std::shared_ptr<const TransferDevice> gpu_ = EmulatedGpu();
  const size_t bytes_;
  std::byte* const data_;
};

std::unique_ptr<WireLane> OpenLane(Wire& from, const Wire& to) {
  auto lane = from.Connect(to.address(), 10'000);
  EXPECT_TRUE(lane.ok()) << lane.status();
  EXPECT_TRUE(WaitUntil([&] { return (*lane)->TakesDeviceMemory(); }));
  return *std::move(lane);
}

// The arena of slabs goes, and another one comes, perhaps at the same address.
TEST(WireSameHostGpu, AllocationsComeAndGo) {
  TestReceiver nobody;
  DeviceReceiver receiver(/*gpu=*/true);
  const auto target = MakeWire(receiver, EmulatedGpu());
  const auto source = MakeWire(nobody, EmulatedGpu());
  const auto lane = OpenLane(*source, *target);
  for (uint64_t i = 1; i < kExportsMax; ++i) {
    const Slab slab;
    EXPECT_TRUE(slab.Send(*lane, MakeMessage(2 * i, 300'000)).ok());
    EXPECT_TRUE(slab.Send(*lane, MakeMessage(2 * i + 1, 5'000)).ok());
  }
  EXPECT_TRUE(receiver.WaitSettled(2 * (kExportsMax - 1)));
  EXPECT_EQ(receiver.Read(&DeviceReceiver::on_device), 2 * static_cast<int>(kExportsMax - 1));
  EXPECT_EQ(receiver.Read(&DeviceReceiver::torn), 0);
  // The lane has named as many as it may: it goes on with host memory.
  const Slab more;
  EXPECT_TRUE(absl::IsUnavailable(more.Send(*lane, MakeMessage(100, 1000))));
  EXPECT_FALSE(lane->TakesDeviceMemory());
  TestSender sent;
  ASSERT_TRUE(sent.Put(*lane, MakeMessage(101, 1000)).ok());
  ASSERT_TRUE(sent.WaitDone(1));
  EXPECT_EQ(sent.count(absl::StatusCode::kOk), 1u);
}

// DeviceProbe's memory can be mapped, the slabs' arena cannot.
TEST(WireSameHostGpu, AnArenaThatCannotBeMappedEndsTheUseOfTheGpu) {
  const ScopedEnvironment imports("PENSTOCK_EMULATED_IMPORTS", "large refused");
  TestReceiver nobody;
  DeviceReceiver receiver(/*gpu=*/true);
  const auto target = MakeWire(receiver, EmulatedGpu());
  const auto source = MakeWire(nobody, EmulatedGpu());
  const CapturedOutput log(STDOUT_FILENO);
  const auto lane = OpenLane(*source, *target);
  const Slab slab(DeviceProbe::kBytes + kMiB);
  for (uint64_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(absl::IsUnavailable(slab.Send(*lane, MakeMessage(i, 1000))));
  }
  EXPECT_FALSE(lane->TakesDeviceMemory());
  TestSender sent;
  ASSERT_TRUE(sent.Put(*lane, MakeMessage(9, 1000)).ok());
  ASSERT_TRUE(sent.WaitDone(1));
  EXPECT_EQ(sent.count(absl::StatusCode::kOk), 1u);
  EXPECT_TRUE(log.WaitFor("gpu_memory_not_used", 2)) << log.text();
  EXPECT_EQ(log.Count("gpu_memory_not_used"), 2) << log.text();  // once at each end
  EXPECT_EQ(receiver.Read(&DeviceReceiver::announced), 1);
}

// A receiver whose GPU has no room for a slab takes it to host memory.
TEST(WireSameHostGpu, PayloadsMayLandInHostMemory) {
  TestReceiver nobody, receiver;
  const auto target = MakeWire(receiver, EmulatedGpu());
  const auto source = MakeWire(nobody, EmulatedGpu());
  const auto lane = OpenLane(*source, *target);
  const Slab slab(8 * kMiB);
  for (const size_t size : {0u, 1u, 4097u, 5u << 20}) {
    EXPECT_TRUE(slab.Send(*lane, MakeMessage(size, size)).ok());
  }
  EXPECT_EQ(receiver.landed(), 4u);
  receiver.ExpectSound();
}

TEST(WireSameHostGpu, ARefusedPayloadFailsItsPutAndNothingElse) {
  TestReceiver nobody, receiver;
  receiver.on_announced = [](const TestHeader& header) {
    return header.number == 1 ? FailedPrecondition("no such handoff") : absl::OkStatus();
  };
  const auto target = MakeWire(receiver, EmulatedGpu());
  const auto source = MakeWire(nobody, EmulatedGpu());
  const auto lane = OpenLane(*source, *target);
  const Slab slab;
  EXPECT_TRUE(absl::IsUnavailable(slab.Send(*lane, MakeMessage(1, 1000))));
  EXPECT_TRUE(slab.Send(*lane, MakeMessage(2, 1000)).ok());
  EXPECT_TRUE(lane->TakesDeviceMemory());
}

// A peer that has greeted, and then says what no sender says.
class Stranger {
 public:
  explicit Stranger(const Wire& target) {
    const auto fd = ConnectAbstract(ParseWireAddress(target.address())->same_host,
                                    std::chrono::steady_clock::now() + std::chrono::seconds(10));
    EXPECT_TRUE(fd.ok()) << fd.status();
    fd_ = *fd;
    Say({.kind = WirePacket::Kind::kHello,
         .id = kWord,
         .address = reinterpret_cast<uint64_t>(&kWord)});
  }
  ~Stranger() { close(fd_); }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  void Say(const WirePacket& packet) const { send(fd_, &packet, sizeof(packet), MSG_NOSIGNAL); }
  // Names `slab`, with the size `bytes`.
  void Export(const Slab& slab, uint32_t number, uint64_t bytes) const {
    const auto exported = EmulatedGpu()->Export(slab.data());
    ASSERT_TRUE(exported.ok()) << exported.status();
    WirePacket packet{.kind = WirePacket::Kind::kExport, .address = bytes, .code = number};
    packet.SetText({exported->name.data(), exported->name.size()});
    Say(packet);
  }
  void Announce(uint32_t number, uint64_t offset, uint64_t size) const {
    const TestHeader header{.number = 1, .size = size};
    WirePacket packet{
        .kind = WirePacket::Kind::kAnnounce, .address = offset, .size = size, .code = number};
    packet.SetText({reinterpret_cast<const char*>(&header), sizeof(header)});
    Say(packet);
  }
  void Probe(uint32_t number, uint64_t offset, uint64_t size) const {
    Say({.kind = WirePacket::Kind::kProbe, .address = offset, .size = size, .code = number});
  }
  // True when the other end hangs up.
  bool IsCutOff() const {
    return WaitUntil([&] {
      pollfd entry{.fd = fd_, .events = POLLRDHUP, .revents = 0};
      return poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP)) != 0;
    });
  }

 private:
  static constexpr uint64_t kWord = 0x1234;
  int fd_ = -1;
};

TEST(WireSameHostGpu, APeerReadsNothingBeyondWhatItHasNamed) {
  TestReceiver nobody, receiver;
  const auto target = MakeWire(receiver, EmulatedGpu());
  const Slab slab;
  using Say = std::function<void(const Stranger&)>;
  const std::vector<Say> strange = {
      [](const Stranger& peer) { peer.Announce(1, 0, 1); },  // of no memory
      [](const Stranger& peer) { peer.Announce(2, 0, 1); },  // of memory that is not named
      [](const Stranger& peer) { peer.Announce(~0u, 0, 1); },
      [](const Stranger& peer) { peer.Announce(1, kMiB, 1); },  // beyond its end
      [](const Stranger& peer) { peer.Announce(1, kMiB - 10, 11); },
      [](const Stranger& peer) { peer.Announce(1, 0, kMiB + 1); },
      [](const Stranger& peer) { peer.Announce(1, ~uint64_t{0} - 9, 20); },
      [](const Stranger& peer) { peer.Probe(1, 0, kMiB); },  // of another size than the probe's
      [](const Stranger& peer) {
        peer.Say({.kind = WirePacket::Kind::kExport, .address = kMiB, .code = 2});  // no name
      },
      [&](const Stranger& peer) { peer.Export(slab, 1, kMiB); },  // once more
      [&](const Stranger& peer) { peer.Export(slab, 3, kMiB); },  // one left out
      [&](const Stranger& peer) { peer.Export(slab, 2, 0); },
      [&](const Stranger& peer) {
        for (uint32_t number = 2; number <= kExportsMax + 1; ++number) {
          peer.Export(slab, number, kMiB);
        }
      },
      [](const Stranger& peer) {
        for (int i = 0; i < 2; ++i) peer.Probe(1, 0, DeviceProbe::kBytes);
      },
      [](const Stranger& peer) { peer.Say({.kind = WirePacket::Kind::kProbed}); },
  };
  for (size_t i = 0; i < strange.size(); ++i) {
    const Stranger peer(*target);
    if (i > 0) peer.Export(slab, 1, kMiB);
    strange[i](peer);
    EXPECT_TRUE(peer.IsCutOff()) << i;
  }
  EXPECT_EQ(receiver.announced(), 0u);
  // A size that the memory does not have is seen when it is mapped.
  const Stranger liar(*target);
  liar.Export(slab, 1, 64 * kMiB);
  liar.Announce(1, 32 * kMiB, 100);
  // Nor is a lane without a GPU spoken to about GPUs.
  const auto without = MakeWire(nobody, nullptr);
  const Stranger peer(*without);
  peer.Export(slab, 1, kMiB);
  EXPECT_TRUE(peer.IsCutOff());
  // The wire goes on.
  const auto source = MakeWire(nobody, EmulatedGpu());
  const auto lane = OpenLane(*source, *target);
  EXPECT_TRUE(slab.Send(*lane, MakeMessage(7, 1000)).ok());
  EXPECT_EQ(receiver.announced(), 1u);
  receiver.ExpectSound();
}

// The emulated GPU, whose copies end when the test says so.
class SlowGpu final : public TransferDevice {
 public:
  void Hold() { held_ = true; }
  void Release() { held_ = false; }
  int polls() const { return polls_; }

  absl::StatusOr<bool> Reached(void* event) const override {
    ++polls_;
    if (held_) return false;
    return gpu_->Reached(event);
  }
  void Select() const override { gpu_->Select(); }
  std::byte* AllocatePinned(size_t bytes) const override { return gpu_->AllocatePinned(bytes); }
  void FreePinned(std::byte* p) const override { gpu_->FreePinned(p); }
  std::byte* AllocateForWires(size_t bytes) const override { return gpu_->AllocateForWires(bytes); }
  void FreeForWires(std::byte* p, size_t bytes) const override { gpu_->FreeForWires(p, bytes); }
  absl::StatusOr<ExportedMemory> Export(const std::byte* data) const override {
    return gpu_->Export(data);
  }
  absl::StatusOr<std::byte*> Import(const ExportName& name, size_t bytes) const override {
    return gpu_->Import(name, bytes);
  }
  void Release(std::byte* imported, size_t bytes) const override { gpu_->Release(imported, bytes); }
  void* CreateStream() const override { return gpu_->CreateStream(); }
  void DestroyStream(void* stream) const override { gpu_->DestroyStream(stream); }
  void* CreateEvent() const override { return gpu_->CreateEvent(); }
  void DestroyEvent(void* event) const override { gpu_->DestroyEvent(event); }
  void RecordEvent(void* event, void* stream) const override { gpu_->RecordEvent(event, stream); }
  absl::Status Copy(Way way, std::byte* to, const std::byte* from, size_t bytes,
                    void* stream) const override {
    return gpu_->Copy(way, to, from, bytes, stream);
  }
  absl::Status StartCopy(Way way, std::byte* to, const std::byte* from, size_t bytes,
                         void* stream) const override {
    return gpu_->StartCopy(way, to, from, bytes, stream);
  }
  void Quiesce() const override { gpu_->Quiesce(); }

 private:
  const std::shared_ptr<const TransferDevice> gpu_ = EmulatedGpu();
  std::atomic<bool> held_{false};
  mutable std::atomic<int> polls_{0};
};

// Notes the bytes at the targets of lost messages.
class LosingReceiver final : public WireReceiver {
 public:
  absl::StatusOr<std::byte*> OnAnnounced(std::span<const std::byte>, size_t) override {
    return Internal("a message in host memory");
  }
  absl::StatusOr<WireTarget> OnAnnouncedAnywhere(std::span<const std::byte>, size_t) override {
    return WireTarget{.data = places_.data() + Next() * kPlace, .memory = MemoryKind::kDevice};
  }
  void OnLanded(std::span<const std::byte>, std::span<std::byte>) override {
    ADD_FAILURE() << "a message landed";
  }
  void OnLost(std::span<const std::byte>, std::byte* target) override {
    waiting_.Change([&] { lost_[target] = BytesAt(target); });
  }

  bool WaitAnnounced(size_t count) {
    return waiting_.Wait([&] { return announced_ >= count; });
  }
  bool WaitLost(size_t count) {
    return waiting_.Wait([&] { return lost_.size() >= count; });
  }
  size_t announced() {
    size_t count = 0;
    waiting_.Change([&] { count = announced_; });
    return count;
  }
  void ExpectNothingWrittenSince() {
    waiting_.Change([&] {
      for (const auto& [target, bytes] : lost_) EXPECT_TRUE(BytesAt(target) == bytes);
    });
  }

 private:
  static constexpr size_t kPlace = 100'000;

  size_t Next() {
    size_t next = 0;
    waiting_.Change([&] { next = announced_++; });
    return next;
  }
  static std::vector<std::byte> BytesAt(const std::byte* target) {
    const std::byte* const seen = cuda::emulator::SeenByHardware(target);
    return {seen, seen + kPlace};
  }

  const Slab memory_{20 * kPlace};
  const std::span<std::byte> places_{memory_.data(), 20 * kPlace};
  Waiting waiting_;
  size_t announced_ = 0;
  std::map<std::byte*, std::vector<std::byte>> lost_;
};

// A lane closes while copies are under way: their targets are given back when the GPU writes them
// no more.
TEST(WireSameHostGpu, NothingIsWrittenAfterAMessageIsLost) {
  TestReceiver nobody;
  LosingReceiver receiver;
  const auto gpu = std::make_shared<SlowGpu>();
  const auto target = MakeWire(receiver, gpu);
  const auto source = MakeWire(nobody, EmulatedGpu());
  auto lane = OpenLane(*source, *target);
  const Slab slab;
  const TestMessage message = MakeMessage(1, 100'000);
  std::ranges::copy(message.payload, cuda::emulator::SeenByHardware(slab.data()));
  gpu->Hold();
  Waiting waiting;
  int ended = 0;
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(lane->PutFromDevice(message.header.bytes(), {slab.data(), message.payload.size()},
                                    [&](const absl::Status&) { waiting.Change([&] { ++ended; }); })
                    .ok());
  }
  ASSERT_TRUE(receiver.WaitAnnounced(16));
  lane.reset();  // does not wait for the peer's GPU
  EXPECT_TRUE(waiting.Wait([&] { return ended == 20; }));
  const int polls = gpu->polls();
  EXPECT_TRUE(WaitUntil([&] { return gpu->polls() > polls + 1000; }));
  gpu->Release();
  ASSERT_TRUE(receiver.WaitLost(16));
  EXPECT_EQ(receiver.announced(), 16u);  // so many at a time
  gpu->Quiesce();
  receiver.ExpectNothingWrittenSince();
}

// Nothing of a lane stays mapped when it is closed.
TEST(WireSameHostGpu, LanesLeaveNothingMapped) {
  TestReceiver nobody;
  DeviceReceiver receiver(/*gpu=*/true);
  const auto target = MakeWire(receiver, EmulatedGpu());
  const auto source = MakeWire(nobody, EmulatedGpu());
  const Slab slab;
  const auto cycle = [&] {
    const auto lane = OpenLane(*source, *target);
    EXPECT_TRUE(slab.Send(*lane, MakeMessage(1, 1000)).ok());
  };
  const size_t descriptors = OpenDescriptors();
  for (int i = 0; i < 8; ++i) cycle();
  EXPECT_TRUE(WaitUntil([&] { return OpenDescriptors() <= descriptors; }));
}

}  // namespace
}  // namespace penstock
