// Lanes of UCX, and within one host, from and to the memory of an emulated GPU, which the CPU
// cannot touch.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <thread>

#include "kvstore/wire/host/host_wire.h"
#include "tests/contract/device_receiver.h"
#include "tests/contract/wire_support.h"
#include "tests/cuda/emulator/emulated_memory.h"
#include "tests/support/captured_output.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

// The lanes of a test, and the ends that have a GPU.
struct Ends {
  bool source = true, target = true;
  bool same_host = false;

  // Lanes within one host use GPU memory if both ends have it, others at either end.
  bool uses_source() const { return source && (target || !same_host); }
  bool uses_target() const { return target && (source || !same_host); }
};

// With the environment that the test's stand-in for UCX, or the emulated GPU, looks at.
class WireDeviceTest : public testing::TestWithParam<Ends> {
 protected:
  // GPU memory "works" or "fails" for the lanes.
  void Open(const char* memory) {
    device_memory_.emplace("PENSTOCK_TEST_DEVICE_MEMORY", memory);
    imports_.emplace("PENSTOCK_EMULATED_IMPORTS", memory == std::string("fails") ? "astray" : "");
    receiver_ = std::make_unique<DeviceReceiver>(GetParam().target);
    target_ = MakeWire(GetParam().target, *receiver_);
    source_ = MakeWire(GetParam().source, nobody_);
    if (GetParam().source) {
      gpu_ = EmulatedGpu();
      slab_ = gpu_->AllocateForWires(kSlab);
    }
    auto lane = source_->Connect(target_->address(), 30'000);
    ASSERT_TRUE(lane.ok()) << lane.status();
    lane_ = *std::move(lane);
  }
  void TearDown() override {
    lane_.reset();
    source_.reset();
    target_.reset();
    if (slab_ != nullptr) gpu_->FreeForWires(slab_, kSlab);
    receiver_.reset();
    device_memory_.reset();
    imports_.reset();
  }
  static std::unique_ptr<Wire> MakeWire(bool gpu, WireReceiver& receiver) {
    const auto device = gpu ? EmulatedGpu() : nullptr;
    auto wire =
        GetParam().same_host
            ? MakeHostWire({.lanes = "shm", .limits = {}, .same_host_gpu = device}, receiver)
            : MakeUcxWire({.gpu = device}, receiver);
    EXPECT_TRUE(wire.ok()) << wire.status();
    EXPECT_EQ((*wire)->TakesDeviceMemory(), gpu);
    return *std::move(wire);
  }

  // Sends `message` from the GPU where the lane takes it from there; waits for its end.
  absl::Status Send(const TestMessage& message) {
    absl::Status end;
    bool ended = false;
    Waiting waiting;
    const auto done = [&](const absl::Status& status) {
      waiting.Change([&] {
        end = status;
        ended = true;
      });
    };
    const size_t size = message.payload.size();
    const bool from_device = gpu_ != nullptr && lane_->TakesDeviceMemory();
    from_device_ += from_device ? 1 : 0;
    if (from_device) {
      std::ranges::copy(message.payload, cuda::emulator::SeenByHardware(slab_));
      RETURN_IF_ERROR(lane_->PutFromDevice(message.header.bytes(), {slab_, size}, done));
    } else {
      RETURN_IF_ERROR(lane_->Put(message.header.bytes(), message.payload, done));
    }
    EXPECT_TRUE(waiting.Wait([&] { return ended; }));
    return end;
  }
  // Until the lane has been tried and used as it can be.
  bool SendUntil(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!condition() && std::chrono::steady_clock::now() < deadline) {
      EXPECT_TRUE(Send(MakeMessage(next_++, 300'000)).ok());
    }
    return condition();
  }

  static constexpr size_t kSlab = size_t{1} << 20;
  std::optional<ScopedEnvironment> device_memory_, imports_;
  TestReceiver nobody_;
  std::unique_ptr<DeviceReceiver> receiver_;
  std::unique_ptr<Wire> target_, source_;
  std::shared_ptr<const TransferDevice> gpu_;
  std::byte* slab_ = nullptr;
  std::unique_ptr<WireLane> lane_;
  int from_device_ = 0;
  uint64_t next_ = 1;
};

TEST_P(WireDeviceTest, PayloadsGoFromAndToGpusOnceTheLaneIsTried) {
  Open("works");
  const bool source = GetParam().uses_source(), target = GetParam().uses_target();
  EXPECT_TRUE(SendUntil([&] {
    return (from_device_ > 0 || !source) &&
           (receiver_->Read(&DeviceReceiver::on_device) > 0 || !target);
  }));
  int sent = static_cast<int>(next_ - 1);
  for (const size_t size : {0u, 1u, 100u, 4096u, 4097u, 65536u, 1u << 20}) {
    EXPECT_TRUE(Send(MakeMessage(next_++, size)).ok()) << size;
    ++sent;
  }
  EXPECT_TRUE(receiver_->WaitSettled(sent));
  EXPECT_EQ(receiver_->Read(&DeviceReceiver::torn), 0);
  EXPECT_EQ(receiver_->Read(&DeviceReceiver::lost), 0);
  EXPECT_EQ(from_device_ > 0, source);
  EXPECT_EQ(receiver_->Read(&DeviceReceiver::on_device) > 0, target);
}

class BrokenDeviceTest : public WireDeviceTest {};  // with a GPU somewhere
TEST_P(BrokenDeviceTest, GoesByTheHostAndSaysSo) {
  {
    const CapturedOutput log(STDOUT_FILENO);  // where lines go before StartLogging
    Open("fails");
    EXPECT_TRUE(log.WaitFor("gpu_memory_not_used", 2)) << log.text();  // of either end
  }
  EXPECT_TRUE(SendUntil([&] { return next_ > 10; }));
  EXPECT_TRUE(receiver_->WaitSettled(10));
  EXPECT_EQ(from_device_, 0);
  EXPECT_FALSE(lane_->TakesDeviceMemory());
  EXPECT_EQ(receiver_->Read(&DeviceReceiver::on_device), 0);
  EXPECT_EQ(receiver_->Read(&DeviceReceiver::torn), 0);
}

class BrokenSourceTest : public WireDeviceTest {};  // with a GPU at the source
TEST_P(BrokenSourceTest, APutFromTheGpuEndsAndTheLaneStays) {
  Open("fails");
  const TestMessage message = MakeMessage(1, 100'000);
  absl::Status end;
  bool ended = false;
  Waiting waiting;
  ASSERT_TRUE(lane_
                  ->PutFromDevice(message.header.bytes(), {slab_, message.payload.size()},
                                  [&](const absl::Status& status) {
                                    waiting.Change([&] {
                                      end = status;
                                      ended = true;
                                    });
                                  })
                  .ok());
  ASSERT_TRUE(waiting.Wait([&] { return ended; }));
  EXPECT_TRUE(absl::IsUnavailable(end)) << end;
  EXPECT_TRUE(Send(MakeMessage(2, 100'000)).ok());
}

// Peers beyond the first wait for the probe's one target; those that go meanwhile leave the line.
TEST_P(WireDeviceTest, ManyLanesAreTriedOneAfterTheOther) {
  Open("works");
  std::vector<std::unique_ptr<WireLane>> lanes;
  for (int i = 0; i < 12; ++i) {
    auto lane = source_->Connect(target_->address(), 30'000);
    ASSERT_TRUE(lane.ok()) << lane.status();
    if (i % 3 != 0) lanes.push_back(*std::move(lane));  // The others are gone at once.
  }
  lanes.push_back(std::move(lane_));
  for (auto& lane : lanes) {
    lane_ = std::move(lane);
    const int before = from_device_;
    const uint64_t first = next_;
    EXPECT_TRUE(SendUntil(
        [&] { return GetParam().uses_source() ? from_device_ > before : next_ >= first + 3; }));
  }
  EXPECT_TRUE(receiver_->WaitSettled(static_cast<int>(next_ - 1)));
  EXPECT_EQ(receiver_->Read(&DeviceReceiver::torn), 0);
}

// The lane goes while payloads are on their way: each is lost or whole, and what comes next is,
// too.
TEST_P(WireDeviceTest, LanesThatCloseMeanwhileLeaveNothingHalf) {
  Open("works");
  EXPECT_TRUE(SendUntil([&] { return from_device_ > 0 || !GetParam().uses_source(); }));
  for (int round = 0; round < 20; ++round) {
    const TestMessage message = MakeMessage(next_, kSlab);
    const bool from_device = lane_->TakesDeviceMemory();
    if (from_device) {
      std::memcpy(cuda::emulator::SeenByHardware(slab_), message.payload.data(), kSlab);
    }
    bool ended = false;
    Waiting waiting;
    const auto done = [&](const absl::Status&) { waiting.Change([&] { ended = true; }); };
    if (from_device) {
      ASSERT_TRUE(lane_->PutFromDevice(message.header.bytes(), {slab_, kSlab}, done).ok());
    } else {
      ASSERT_TRUE(lane_->Put(message.header.bytes(), message.payload, done).ok());
    }
    lane_.reset();
    EXPECT_TRUE(waiting.Wait([&] { return ended; }));
    auto lane = source_->Connect(target_->address(), 30'000);
    ASSERT_TRUE(lane.ok()) << lane.status();
    lane_ = *std::move(lane);
  }
  EXPECT_TRUE(SendUntil([&] { return next_ > 3; }));
  EXPECT_EQ(receiver_->Read(&DeviceReceiver::torn), 0);
}

std::string NameOf(const testing::TestParamInfo<Ends>& ends) {
  return std::string(ends.param.same_host ? "SameHost" : "Ucx") +
         (ends.param.source ? "Gpu" : "Host") + "To" + (ends.param.target ? "Gpu" : "Host");
}
INSTANTIATE_TEST_SUITE_P(Ends, WireDeviceTest,
                         testing::Values(Ends{}, Ends{.target = false}, Ends{.source = false},
                                         Ends{.source = false, .target = false},
                                         Ends{.same_host = true},
                                         Ends{.target = false, .same_host = true},
                                         Ends{.source = false, .same_host = true}),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Ends, BrokenDeviceTest,
                         testing::Values(Ends{}, Ends{.target = false}, Ends{.source = false},
                                         Ends{.same_host = true}),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Ends, BrokenSourceTest,
                         testing::Values(Ends{}, Ends{.target = false}, Ends{.same_host = true}),
                         NameOf);

}  // namespace
}  // namespace penstock
