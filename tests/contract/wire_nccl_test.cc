// The NCCL part of a lane when NCCL fails, tested against a fake NCCL. wire_contract_test checks
// that the lane carries messages.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/log/log.h"
#include "kvstore/wire/host/host_wire.h"
#include "kvstore/wire/net/address.h"
#include "tests/contract/wire_support.h"
#include "tests/support/captured_output.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
using std::chrono::milliseconds;

struct NcclCase {
  std::string library = FAKE_NCCL;
  NcclTimes times = {};
};

absl::StatusOr<std::unique_ptr<Wire>> Make(WireReceiver& receiver, const NcclCase& given = {}) {
  return MakeHostWire({.listen = "127.0.0.1",
                       .lanes = "nccl",
                       .limits = {},
                       .gpu = EmulatedGpu(),
                       .nccl = {.library = given.library, .times = given.times}},
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
  EXPECT_EQ(fake_.Count("ncclCommAbort"), 2);
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
    EXPECT_EQ(fake.Count("ncclCommRevoke"), has_revoke ? 2 : 0);
    EXPECT_EQ(fake.Count("ncclCommAbort"), 2);
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
  fake_.Inject("abort_takes_ms", 4'000);
  ExpectCarries(0, 2, 5 * kMiB);
  const auto began = std::chrono::steady_clock::now();
  CloseAll();
  // Each wire's 3 x 20 ms and a second of grace.
  EXPECT_LT(std::chrono::steady_clock::now() - began, milliseconds(3'500));
  EXPECT_GT(fake_.Open(), 0);
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

// On a machine that has NVIDIA's library and no GPU, it says so instead of hanging.
TEST(RealNccl, LoadsAndNamesItsVersion) {
  const auto library = NcclLibrary::Load("libnccl.so.2");
  if (!library.ok()) GTEST_SKIP() << "not run: " << library.status();
  EXPECT_THAT((*library)->version(), testing::StartsWith("2."));
}

}  // namespace
}  // namespace penstock
