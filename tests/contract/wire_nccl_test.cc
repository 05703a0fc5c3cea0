// The NCCL part of a lane when NCCL fails, tested against a fake NCCL. wire_contract_test checks
// that the lane carries messages.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/log/log.h"
#include "kvstore/wire/host/host_wire.h"
#include "kvstore/wire/net/address.h"
#include "tests/contract/device_receiver.h"
#include "tests/contract/wire_support.h"
#include "tests/support/captured_output.h"
#include "tests/support/environment.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
using std::chrono::milliseconds;

struct NcclCase {
  std::string library = FAKE_NCCL;
  NcclTimes times = {};
  size_t slot_bytes = 2 * kMiB;
};

absl::StatusOr<std::unique_ptr<Wire>> Make(WireReceiver& receiver, const NcclCase& given = {},
                                           int gpu = 0) {
  return MakeHostWire(
      {.listen = "127.0.0.1",
       .lanes = "nccl",
       .limits = {},
       .gpu = EmulatedGpu(gpu),
       .nccl = {.library = given.library, .times = given.times, .slot_bytes = given.slot_bytes}},
      receiver);
}

// Two wires that take each other to be on two hosts, and a lane from one to the other.
class NcclWireTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { StartLogging({.component = "test"}); }  // To standard error.
  void SetUp() override { fake_.Reset(); }
  void TearDown() override {
    CloseAll();
    fake_.ExpectClean();
  }

  void Connect(const NcclCase& given = {}) {
    auto target = Make(receiver_, given);
    auto source = Make(nobody_, given);
    ASSERT_TRUE(target.ok() && source.ok()) << target.status() << source.status();
    target_ = Elsewhere(*std::move(target));
    source_ = *std::move(source);
    auto lane = source_->Connect(target_->address(), 10'000);
    ASSERT_TRUE(lane.ok()) << lane.status();
    lane_ = *std::move(lane);
  }
  [[nodiscard]] bool WaitForTransport(const std::string& transport) const {
    return WaitUntil([&] { return lane_->transport() == transport; });
  }
  // Whole, each once, in the order of their Puts.
  void ExpectCarries(uint64_t first, size_t count, size_t size) {
    TestSender sent;
    for (uint64_t i = 0; i < count; ++i) {
      ASSERT_TRUE(sent.Put(*lane_, MakeMessage(first + i, size)).ok());
    }
    ASSERT_TRUE(sent.WaitDone(count));
    EXPECT_EQ(sent.count(absl::StatusCode::kOk), count);
    receiver_.ExpectSound();
  }
  void CloseAll() {
    lane_.reset();
    source_.reset();
    target_.reset();
  }

  FakeNccl fake_;
  TestReceiver receiver_;
  TestReceiver nobody_;
  std::unique_ptr<Wire> target_;
  std::unique_ptr<Wire> source_;
  std::unique_ptr<WireLane> lane_;
};

TEST_F(NcclWireTest, CarriesWhatIsLargeAndLeavesTheRestToUcx) {
  Connect();
  ASSERT_TRUE(WaitForTransport("nccl"));
  ExpectCarries(0, 5, 60'000);
  EXPECT_EQ(fake_.Count("ncclSend"), 0);
  ExpectCarries(10, 3, 5 * kMiB);  // Three pieces each.
  EXPECT_EQ(fake_.Count("ncclSend"), 9);
  EXPECT_EQ(fake_.Count("ncclRecv"), 9);
  EXPECT_EQ(fake_.Count("ncclGroupStart"), fake_.Count("ncclGroupEnd"));
}

TEST_F(NcclWireTest, DoesNotMakeAnybodyWaitForNccl) {
  fake_.Inject("init_stalls", 1);
  Connect();
  EXPECT_EQ(lane_->transport(), "tcp");
  ExpectCarries(0, 3, 4 * kMiB);
  EXPECT_EQ(fake_.Count("ncclSend"), 0);
  fake_.Inject("init_stalls", 0);
  ASSERT_TRUE(WaitForTransport("nccl"));
  ExpectCarries(10, 3, 4 * kMiB);
  EXPECT_EQ(fake_.Count("ncclSend"), 6);
}

TEST_F(NcclWireTest, FinalizesAndDestroysWhatIsQuiet) {
  Connect();
  ASSERT_TRUE(WaitForTransport("nccl"));
  ExpectCarries(0, 2, 3 * kMiB);
  CloseAll();
  EXPECT_EQ(fake_.Count("ncclCommFinalize"), 2);
  EXPECT_EQ(fake_.Count("ncclCommDestroy"), 2);
  EXPECT_EQ(fake_.Count("ncclCommRevoke"), 0);
  EXPECT_EQ(fake_.Count("ncclCommAbort"), 0);
}

TEST_F(NcclWireTest, AbortsWhatDoesNotFinalize) {
  Connect({.times = {.close = milliseconds(50)}});
  ASSERT_TRUE(WaitForTransport("nccl"));
  fake_.Inject("finalize_stalls", 1);
  CloseAll();
  EXPECT_TRUE(WaitUntil([&] { return fake_.Count("ncclCommAbort") == 2; }));
  EXPECT_EQ(fake_.Count("ncclCommDestroy"), 0);
}

TEST_F(NcclWireTest, GoesOnOverUcxWhereNoCommunicatorOpens) {
  for (const std::string fault : {"id_fails", "init_fails", "init_stalls"}) {
    SCOPED_TRACE(fault);
    fake_.Reset();
    fake_.Inject(fault.c_str(), 1);
    const CapturedOutput log(STDERR_FILENO);
    Connect({.times = {.open = milliseconds(100)}});
    const int64_t opened = fault == "id_fails" ? 0 : 2;
    EXPECT_TRUE(WaitUntil([&] { return fake_.Count("ncclCommAbort") == opened; }));
    EXPECT_EQ(lane_->transport(), "tcp");
    ExpectCarries(0, 3, 4 * kMiB);
    EXPECT_EQ(fake_.Count("ncclSend"), 0);
    CloseAll();
    // Said before it is aborted; where there is nothing to abort, the lane may close first.
    if (opened > 0) {
      EXPECT_TRUE(log.WaitFor("nccl_lane_failed")) << log.text();
    }
    fake_.ExpectClean();
  }
}

// Whatever is on its way by NCCL arrives all the same, by UCX, and nothing twice.
TEST_F(NcclWireTest, LosesNothingWhenAnOperationFails) {
  for (const std::string fault : {"error_at", "stall_at"}) {
    for (const int64_t at : {1, 2, 9, 30}) {
      SCOPED_TRACE(fault + " " + std::to_string(at));
      fake_.Reset();
      Connect({.times = {.move = milliseconds(200)}});
      ASSERT_TRUE(WaitForTransport("nccl"));
      fake_.Inject(fault.c_str(), at);
      const CapturedOutput log(STDERR_FILENO);
      ExpectCarries(100 * static_cast<uint64_t>(at), 10, 5 * kMiB);
      ASSERT_TRUE(WaitForTransport("tcp"));
      ExpectCarries(100 * static_cast<uint64_t>(at) + 50, 2, 5 * kMiB);
      CloseAll();
      // One line an end, and both ends are in this process.
      EXPECT_TRUE(log.WaitFor("nccl_lane_failed", 2)) << log.text();
      EXPECT_EQ(log.Count("nccl_lane_failed"), 2) << log.text();
      EXPECT_EQ(fake_.Count("ncclCommRevoke"), 2);
      EXPECT_EQ(fake_.Count("ncclCommAbort"), 0);
      fake_.ExpectClean();
    }
  }
}

TEST_F(NcclWireTest, AbortsWhereThereIsNoRevokeOrItDoesNotEnd) {
  const FakeNccl old(FAKE_NCCL_OLD);
  for (const bool has_revoke : {false, true}) {
    const FakeNccl& fake = has_revoke ? fake_ : old;
    fake.Reset();
    Connect({.library = has_revoke ? FAKE_NCCL : FAKE_NCCL_OLD,
             .times = {.move = milliseconds(200), .close = milliseconds(50)}});
    ASSERT_TRUE(WaitForTransport("nccl"));
    fake.Inject("revoke_stalls", 1);
    fake.Inject("stall_at", 3);
    ExpectCarries(0, 6, 5 * kMiB);
    CloseAll();
    EXPECT_TRUE(WaitUntil([&] { return fake.Count("ncclCommAbort") == 2; }));
    EXPECT_EQ(fake.Count("ncclCommRevoke"), has_revoke ? 2 : 0);
    EXPECT_EQ(fake.Count("ncclCommDestroy"), 0);
    fake.ExpectClean();
  }
}

// Whoever closes a lane, or a wire, does not wait for NCCL longer than it was told to.
TEST_F(NcclWireTest, DoesNotHangWhereAnAbortDoes) {
  Connect({.times = {.move = milliseconds(200), .close = milliseconds(20)}});
  ASSERT_TRUE(WaitForTransport("nccl"));
  fake_.Inject("stall_at", 1);
  fake_.Inject("revoke_stalls", 1);
  fake_.Inject("abort_stalls", 1);
  ExpectCarries(0, 2, 5 * kMiB);
  CloseAll();  // in each wire's 3 x 20 ms and a second of grace
  EXPECT_GT(fake_.Open(), 0);
  fake_.Inject("abort_stalls", 0);
  // The threads that were left behind touch nothing of ours that is gone.
  EXPECT_TRUE(WaitUntil([&] { return fake_.Open() == 0; }));
}

TEST_F(NcclWireTest, ClosingEndsWhatWasPostedAndNeverCame) {
  Connect({.times = {.move = std::chrono::seconds(20)}});
  ASSERT_TRUE(WaitForTransport("nccl"));
  fake_.Inject("stall_at", 2);
  TestSender sent;
  for (uint64_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(sent.Put(*lane_, MakeMessage(i, 5 * kMiB)).ok());
  }
  ASSERT_TRUE(WaitUntil([&] { return fake_.Count("ncclRecv") >= 4; }));
  lane_.reset();
  EXPECT_EQ(sent.done(), 4u);
  EXPECT_EQ(sent.count(absl::StatusCode::kCancelled), 4u);
  ASSERT_TRUE(receiver_.WaitSettled());
  receiver_.ExpectSound();
  CloseAll();
  EXPECT_EQ(fake_.Count("ncclCommAbort"), 0);
}

TEST_F(NcclWireTest, StaysWithSharedMemoryWithinAHost) {
  auto target = Make(receiver_);
  auto source = Make(nobody_);
  auto lane = (*source)->Connect((*target)->address(), 10'000);
  ASSERT_TRUE(lane.ok()) << lane.status();
  EXPECT_EQ((*lane)->transport(), "shared memory");
  lane->reset();
  // The same host, and yet no shared memory: TCP, for the GPU may be the same, too.
  auto address = ParseWireAddress((*target)->address());
  address->same_host.clear();
  lane = (*source)->Connect(FormatWireAddress(*address), 10'000);
  ASSERT_TRUE(lane.ok()) << lane.status();
  EXPECT_EQ((*lane)->transport(), "tcp");
  lane->reset();
  EXPECT_EQ(fake_.Count("ncclCommInitRankConfig"), 0);
}

TEST_F(NcclWireTest, DoesNotTryWhatThePeerDoesNotHave) {
  auto target = Make(receiver_);
  auto source = Make(nobody_);
  auto address = ParseWireAddress((*target)->address());
  EXPECT_EQ(address->nccl, "2.28.9");
  address->host = "elsewhere";
  for (const std::string version : {"", "2.27.3"}) {
    address->nccl = version;
    const CapturedOutput log(STDERR_FILENO);
    auto lane = (*source)->Connect(FormatWireAddress(*address), 10'000);
    ASSERT_TRUE(lane.ok()) << lane.status();
    EXPECT_EQ((*lane)->transport(), "tcp");
    EXPECT_TRUE(log.WaitFor(version.empty() ? "peer has version none" : "peer has version 2.27.3"))
        << log.text();
    TestSender sent;
    ASSERT_TRUE(sent.Put(**lane, MakeMessage(1, 3 * kMiB)).ok());
    ASSERT_TRUE(sent.WaitDone(1));
    lane->reset();
  }
  EXPECT_EQ(fake_.Count("ncclCommInitRankConfig"), 0);
}

TEST_F(NcclWireTest, SaysWhatIsWrongAtTheStart) {
  const auto expect = [&](const HostWireOptions& options, const std::string& text) {
    const auto wire = MakeHostWire(options, receiver_);
    EXPECT_EQ(wire.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(Message(wire.status()), testing::HasSubstr(text));
  };
  HostWireOptions options{.lanes = "nccl", .limits = {}};
  expect(options, "--device=cuda:0");
  options.gpu = EmulatedGpu();
  options.nccl.library = "no-such-libnccl.so";
  expect(options, "no-such-libnccl.so");
  options.nccl.library = "libm.so.6";
  expect(options, "libm.so.6 has no ncclGetVersion");
  options.nccl.library = FAKE_NCCL;
  fake_.Inject("version", 21805);
  expect(options, "NCCL 2.18.5; versions from 2.19.0 on");
  fake_.Inject("version", 30000);
  expect(options, "NCCL 3.0.0");
}

// Payloads in the memory of one GPU, which the CPU cannot touch, to a receiver with another one.
struct DeviceCase {
  bool lands_on_gpu = true;
  bool one_queue = false;  // copies wait for all NCCL's operations that were enqueued before
};
class NcclDeviceTest : public NcclWireTest, public testing::WithParamInterface<DeviceCase> {
 protected:
  static constexpr size_t kMessages = 16, kBytes = DeviceReceiver::kPlaceBytes;

  NcclDeviceTest() {
    if (GetParam().one_queue) queues_.emplace("PENSTOCK_EMULATED_QUEUES", "1");
  }
  void TearDown() override {
    NcclWireTest::TearDown();
    ExpectSound();
  }
  ~NcclDeviceTest() override {
    gpu_->Select();
    gpu_->FreeForWires(slabs_, kMessages * kBytes);
  }
  void Connect(const NcclTimes& times = {}) {
    const NcclCase given{.times = times, .slot_bytes = kMiB / 4};
    auto target = Make(landing_, given, /*gpu=*/1);
    auto source = Make(nobody_, given);
    ASSERT_TRUE(target.ok() && source.ok()) << target.status() << source.status();
    target_ = Elsewhere(*std::move(target));
    source_ = *std::move(source);
    EXPECT_TRUE(source_->TakesDeviceMemory());
    auto lane = source_->Connect(target_->address(), 10'000);
    ASSERT_TRUE(lane.ok()) << lane.status();
    lane_ = *std::move(lane);
    ASSERT_TRUE(WaitForTransport("nccl"));
    EXPECT_TRUE(lane_->TakesDeviceMemory());
  }
  // Puts messages of these sizes from the GPU, all at once. The memory of one that has ended is
  // overwritten, as the next slab there would.
  void Put(const std::vector<size_t>& sizes) {
    ASSERT_LE(sizes.size(), kMessages);
    messages_.clear();
    waiting_.Change([&] { ends_.clear(); });
    for (const size_t size : sizes) messages_.push_back(MakeMessage(++sent_, size));
    for (size_t i = 0; i < sizes.size(); ++i) {
      std::byte* const data = slabs_ + i * kBytes;
      std::ranges::copy(messages_[i].payload, cuda::emulator::SeenByHardware(data));
      const auto done = [this, data](const absl::Status& status) {
        std::fill_n(cuda::emulator::SeenByHardware(data), kBytes, std::byte{0xdd});
        waiting_.Change([&] { ends_.push_back(status); });
      };
      ASSERT_TRUE(lane_->PutFromDevice(messages_[i].header.bytes(), {data, sizes[i]}, done).ok());
    }
  }
  // How many of them have ended so, after all have.
  size_t WaitEnded(absl::StatusCode code) {
    EXPECT_TRUE(waiting_.Wait([&] { return ends_.size() == messages_.size(); }));
    return static_cast<size_t>(
        std::ranges::count_if(ends_, [&](const absl::Status& end) { return end.code() == code; }));
  }
  void ExpectCarries(const std::vector<size_t>& sizes) {
    Put(sizes);
    EXPECT_EQ(WaitEnded(absl::StatusCode::kOk), sizes.size());
    EXPECT_TRUE(landing_.WaitLanded(static_cast<int>(sent_)));
    ExpectSound();
  }
  void ExpectSound() {
    EXPECT_EQ(landing_.Read(&DeviceReceiver::torn), 0);
    EXPECT_EQ(landing_.WrittenLate(), 0);
  }

  const ScopedEnvironment gpus_{"PENSTOCK_EMULATED_GPUS", "2"};
  std::optional<ScopedEnvironment> queues_;
  DeviceReceiver landing_{GetParam().lands_on_gpu, /*index=*/1};
  const std::shared_ptr<const TransferDevice> gpu_ = EmulatedGpu();
  std::byte* const slabs_ = gpu_->AllocateForWires(kMessages * kBytes);
  uint64_t sent_ = 0;
  std::vector<TestMessage> messages_;
  Waiting waiting_;
  std::vector<absl::Status> ends_;
};

TEST_P(NcclDeviceTest, PayloadsGoFromGpuToGpu) {
  Connect();
  ExpectCarries(std::vector<size_t>(kMessages, 900'000));
  EXPECT_EQ(fake_.Count("ncclSend"), 4 * static_cast<int64_t>(kMessages));
  ExpectCarries({0, 1, 4096, 5000, 65'535});
  EXPECT_EQ(fake_.Count("ncclSend"), 4 * static_cast<int64_t>(kMessages) + 4);
  const int on_device = landing_.Read(&DeviceReceiver::on_device);
  EXPECT_EQ(on_device, GetParam().lands_on_gpu ? static_cast<int>(kMessages) + 4 : 0);
  // From the host's memory, too.
  TestSender sender;
  ASSERT_TRUE(sender.Put(*lane_, MakeMessage(++sent_, 700'000)).ok());
  ASSERT_TRUE(sender.WaitDone(1));
  EXPECT_EQ(sender.count(absl::StatusCode::kOk), 1u);
  EXPECT_TRUE(landing_.WaitLanded(static_cast<int>(sent_)));
  EXPECT_EQ(fake_.Count("ncclSend"), 4 * static_cast<int64_t>(kMessages) + 7);
  EXPECT_EQ(landing_.Read(&DeviceReceiver::lost), 0);
  ExpectSound();
}

// No Put fails, and no copy that waited behind NCCL's operations writes where another slab is.
TEST_P(NcclDeviceTest, TheLinkDeliversWhatNcclDoesNot) {
  for (const std::string fault : {"error_at", "stall_at"}) {
    for (const int64_t at : {1, 6, 11, 30}) {
      SCOPED_TRACE(fault + " " + std::to_string(at));
      fake_.Reset();
      Connect({.move = milliseconds(300)});
      fake_.Inject(fault.c_str(), at);
      const CapturedOutput log(STDERR_FILENO);
      ExpectCarries(std::vector<size_t>(kMessages, 900'000));
      ASSERT_TRUE(WaitForTransport("tcp"));
      EXPECT_FALSE(lane_->TakesDeviceMemory());
      ExpectCarries({900'000, 0, 100});  // As by a sender that does not know it yet.
      CloseAll();
      EXPECT_TRUE(log.WaitFor("nccl_lane_failed", 2)) << log.text();
      EXPECT_EQ(fake_.Count("ncclCommRevoke"), 2);
      fake_.ExpectClean();
      ExpectSound();
    }
  }
}

TEST_P(NcclDeviceTest, ClosingEndsWhatWasPostedAndNeverCame) {
  const CapturedOutput log(STDERR_FILENO);
  Connect({.move = std::chrono::seconds(20)});
  fake_.Inject("stall_at", 7);
  Put(std::vector<size_t>(4, 900'000));
  ASSERT_TRUE(WaitUntil([&] { return fake_.Count("ncclRecv") >= 4; }));
  lane_.reset();
  EXPECT_EQ(WaitEnded(absl::StatusCode::kCancelled) + WaitEnded(absl::StatusCode::kOk), 4u);
  EXPECT_TRUE(landing_.WaitEnded());
  ExpectSound();
  CloseAll();
  EXPECT_EQ(fake_.Count("ncclCommAbort"), 0);
  EXPECT_EQ(log.Count("nccl_not_aborted"), 0) << log.text();
}

TEST_P(NcclDeviceTest, PeersThatGoLeaveNothingHalf) {
  const CapturedOutput log(STDERR_FILENO);
  Connect({.move = std::chrono::seconds(20)});
  fake_.Inject("stall_at", 7);
  Put(std::vector<size_t>(4, 900'000));
  ASSERT_TRUE(WaitUntil([&] { return fake_.Count("ncclRecv") >= 4; }));
  target_.reset();
  EXPECT_EQ(WaitEnded(absl::StatusCode::kUnavailable) + WaitEnded(absl::StatusCode::kOk), 4u);
  EXPECT_TRUE(landing_.WaitEnded());
  CloseAll();
  EXPECT_EQ(log.Count("nccl_not_aborted"), 0) << log.text();
}

TEST_P(NcclDeviceTest, DoesNotHangWhereAnAbortDoes) {
  Connect({.move = milliseconds(200), .close = milliseconds(20)});
  fake_.Inject("stall_at", 1);
  fake_.Inject("revoke_stalls", 1);
  fake_.Inject("abort_stalls", 1);
  Put(std::vector<size_t>(4, 900'000));
  ASSERT_TRUE(WaitForTransport("tcp"));
  CloseAll();  // in each wire's 4 x 20 ms and a second of grace
  EXPECT_GT(fake_.Open(), 0);
  fake_.Inject("abort_stalls", 0);
  EXPECT_EQ(WaitEnded(absl::StatusCode::kCancelled), 4u);
  EXPECT_TRUE(landing_.WaitEnded());
  EXPECT_TRUE(WaitUntil([&] { return fake_.Open() == 0; }));
}

INSTANTIATE_TEST_SUITE_P(Receivers, NcclDeviceTest,
                         testing::Values(DeviceCase{}, DeviceCase{.one_queue = true},
                                         DeviceCase{.lands_on_gpu = false},
                                         DeviceCase{.lands_on_gpu = false, .one_queue = true}),
                         [](const auto& of) {
                           return std::string(of.param.lands_on_gpu ? "WithGpu" : "WithoutGpu") +
                                  (of.param.one_queue ? "OneQueue" : "");
                         });

// On a machine that has NVIDIA's library and no GPU, it says so instead of hanging.
TEST(RealNccl, LoadsAndNamesItsVersion) {
  const auto library = NcclLibrary::Load("libnccl.so.2");
  if (!library.ok()) GTEST_SKIP() << "not run: " << library.status();
  EXPECT_THAT((*library)->version(), testing::StartsWith("2."));
}

}  // namespace
}  // namespace penstock
