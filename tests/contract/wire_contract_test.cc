#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "base/check.h"
#include "tests/contract/wire_support.h"

namespace penstock {

void PrintTo(const WireKind& kind, std::ostream* stream) { *stream << kind.name; }

namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr int64_t kConnectMs = 10'000;

// The contract of every wire. Receivers and senders are declared before the wires, and so outlive
// them.
class WireContract : public testing::TestWithParam<WireKind> {
 protected:
  void TearDown() override { GetParam().expect_clean(); }
  std::unique_ptr<Wire> Make(WireReceiver& receiver, const WireLimits& limits = {}) {
    return make_(receiver, limits);
  }
  std::unique_ptr<WireLane> Lane(Wire& from, const Wire& to) {
    auto lane = from.Connect(to.address(), kConnectMs);
    // Every test uses its lanes at once, so it cannot go on without one.
    EXPECT_TRUE(lane.ok()) << lane.status();
    PENSTOCK_CHECK(lane.ok(), "(the lane did not open)");
    return *std::move(lane);
  }

  WireKind::Maker make_ = GetParam().make();
  TestReceiver nobody_;  // for wires that only send
};

TEST_P(WireContract, CarriesEverySizeWhole) {
  const std::vector<size_t> sizes = {0,        1,        63,       4095,     4096, 4097,
                                     64 << 10, 2 * kMiB, 8 * kMiB, 12345678, 1,    0};
  TestReceiver receiver;
  TestSender sent;
  const auto target = Make(receiver);
  const auto source = Make(nobody_);
  EXPECT_LE(target->address().size(), 4096u);
  const auto lane = Lane(*source, *target);
  ASSERT_NE(lane, nullptr);
  EXPECT_EQ(lane->transport(), GetParam().transport);
  for (size_t i = 0; i < sizes.size(); ++i) {
    ASSERT_TRUE(sent.Put(*lane, MakeMessage(i, sizes[i])).ok());
  }
  ASSERT_TRUE(sent.WaitDone(sizes.size()));
  EXPECT_EQ(sent.count(absl::StatusCode::kOk), sizes.size());
  EXPECT_EQ(receiver.landed(), sizes.size());
  receiver.ExpectSound();
}

TEST_P(WireContract, AnnouncesInTheOrderOfPutsAndCallsBackOnOneThread) {
  TestReceiver receiver;
  TestSender sent;
  const auto target = Make(receiver);
  const auto source = Make(nobody_);
  const auto lane = Lane(*source, *target);
  constexpr size_t kCount = 200;
  for (size_t i = 0; i < kCount; ++i) {
    const size_t size = i % 3 == 0 ? 100'000 : i;
    ASSERT_TRUE(sent.Put(*lane, MakeMessage(i, size)).ok());
  }
  ASSERT_TRUE(sent.WaitDone(kCount));
  std::vector<uint64_t> expected(kCount);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(receiver.announcement_order(), expected);
  receiver.ExpectSound();
  EXPECT_EQ(receiver.threads().size(), 1u);
  const auto threads = sent.threads();
  EXPECT_EQ(std::set<std::thread::id>(threads.begin(), threads.end()).size(), 1u);
  EXPECT_NE(threads[0], std::this_thread::get_id());
}

TEST_P(WireContract, ServesManyLanesAtOnce) {
  constexpr size_t kWires = 3;
  constexpr size_t kLanes = 4;
  constexpr size_t kMessages = 20;
  TestReceiver receiver;
  TestSender sent;
  const auto target = Make(receiver);
  std::vector<std::unique_ptr<Wire>> sources;
  std::vector<std::unique_ptr<WireLane>> lanes;
  for (size_t i = 0; i < kWires; ++i) {
    sources.push_back(Make(nobody_));
    for (size_t j = 0; j < kLanes; ++j) lanes.push_back(Lane(*sources[i], *target));
  }
  std::mt19937 random(7);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < lanes.size(); ++i) {
    threads.emplace_back([&, i, seed = random()] {
      std::mt19937 sizes(seed);
      for (size_t j = 0; j < kMessages; ++j) {
        EXPECT_TRUE(sent.Put(*lanes[i], MakeMessage(i * 1000 + j, sizes() % (256 << 10))).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(sent.WaitDone(lanes.size() * kMessages));
  EXPECT_EQ(sent.count(absl::StatusCode::kOk), lanes.size() * kMessages);
  receiver.ExpectSound();
  lanes.clear();
}

TEST_P(WireContract, CarriesBothWaysAtOnce) {
  constexpr size_t kMessages = 24;
  TestReceiver left_receiver;
  TestReceiver right_receiver;
  TestSender left_sent;
  TestSender right_sent;
  const auto left = Make(left_receiver);
  const auto right = Make(right_receiver);
  const auto to_right = Lane(*left, *right);
  const auto to_left = Lane(*right, *left);
  for (size_t i = 0; i < kMessages; ++i) {
    ASSERT_TRUE(left_sent.Put(*to_right, MakeMessage(i, kMiB + i)).ok());
    ASSERT_TRUE(right_sent.Put(*to_left, MakeMessage(i, kMiB - i)).ok());
  }
  ASSERT_TRUE(left_sent.WaitDone(kMessages));
  ASSERT_TRUE(right_sent.WaitDone(kMessages));
  EXPECT_EQ(left_sent.count(absl::StatusCode::kOk), kMessages);
  EXPECT_EQ(right_sent.count(absl::StatusCode::kOk), kMessages);
  left_receiver.ExpectSound();
  right_receiver.ExpectSound();
}

TEST_P(WireContract, ARefusedMessageFailsItsPutAndNothingElse) {
  TestReceiver receiver;
  receiver.on_announced = [](const TestHeader& header) {
    return header.number % 2 == 1 ? FailedPrecondition("no such handoff") : absl::OkStatus();
  };
  TestSender sent;
  const auto target = Make(receiver);
  const auto source = Make(nobody_);
  const auto lane = Lane(*source, *target);
  const std::vector<size_t> sizes = {0, 0, 100, 100, 300'000, 300'000, 2 * kMiB, 2 * kMiB};
  for (size_t i = 0; i < sizes.size(); ++i) {
    ASSERT_TRUE(sent.Put(*lane, MakeMessage(i, sizes[i])).ok());
  }
  ASSERT_TRUE(sent.WaitDone(sizes.size()));
  EXPECT_EQ(sent.count(absl::StatusCode::kOk), 4u);
  EXPECT_EQ(sent.count(absl::StatusCode::kUnavailable), 4u);
  EXPECT_THAT(sent.last_message(absl::StatusCode::kUnavailable),
              testing::HasSubstr("no such handoff"));
  EXPECT_EQ(receiver.landed(), 4u);
  EXPECT_EQ(receiver.lost(), 0u);
  receiver.ExpectSound();
}

TEST_P(WireContract, RefusesWhatIsOverTheBound) {
  TestReceiver receiver;
  TestSender sent;
  const auto target = Make(receiver);
  const auto source = Make(nobody_, {.messages = 4, .bytes = 10 * kMiB});
  const auto lane = Lane(*source, *target);
  receiver.Hold();
  ASSERT_TRUE(sent.Put(*lane, MakeMessage(0, 9 * kMiB)).ok());
  TestSender refused;
  EXPECT_EQ(refused.Put(*lane, MakeMessage(1, 2 * kMiB)).code(),
            absl::StatusCode::kResourceExhausted);
  for (size_t i = 2; i < 5; ++i) ASSERT_TRUE(sent.Put(*lane, MakeMessage(i, 10)).ok());
  EXPECT_EQ(refused.Put(*lane, MakeMessage(5, 10)).code(), absl::StatusCode::kResourceExhausted);
  receiver.Release();
  ASSERT_TRUE(sent.WaitDone(4));
  EXPECT_EQ(refused.done(), 0u);
  // A completed message frees its room.
  ASSERT_TRUE(sent.Put(*lane, MakeMessage(6, 10 * kMiB)).ok());
  ASSERT_TRUE(sent.WaitDone(5));
  EXPECT_EQ(sent.count(absl::StatusCode::kOk), 5u);
  receiver.ExpectSound();
}

TEST_P(WireContract, RefusesWhatIsTooLarge) {
  TestReceiver receiver;
  const auto target = Make(receiver);
  const auto source = Make(nobody_);
  const auto lane = Lane(*source, *target);
  const std::vector<std::byte> header(kWireHeaderMax + 1);
  const std::vector<std::byte> payload(kWirePayloadMax + 1);
  const auto never = [](const absl::Status&) { ADD_FAILURE() << "done was called"; };
  EXPECT_EQ(lane->Put(header, {}, never).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(lane->Put({}, payload, never).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(receiver.announced(), 0u);
}

TEST_P(WireContract, MayPutFromDone) {
  TestReceiver receiver;
  const auto target = Make(receiver);
  const auto source = Make(nobody_, {.messages = 1, .bytes = kMiB});
  const auto lane = Lane(*source, *target);
  constexpr uint64_t kCount = 50;
  std::vector<TestMessage> messages;
  for (uint64_t i = 0; i < kCount; ++i) messages.push_back(MakeMessage(i, 5000));
  Waiting waiting;
  uint64_t ended = 0;
  std::function<void(uint64_t)> put = [&](uint64_t i) {
    EXPECT_TRUE(lane->Put(messages[i].header.bytes(), messages[i].payload,
                          [&, i](const absl::Status& status) {
                            EXPECT_TRUE(status.ok()) << status;
                            if (i + 1 < kCount) put(i + 1);
                            waiting.Change([&] { ++ended; });
                          })
                    .ok());
  };
  put(0);
  ASSERT_TRUE(waiting.Wait([&] { return ended == kCount; }));
  receiver.ExpectSound();
}

TEST_P(WireContract, ClosingEndsEveryPutThoughThePeerSleeps) {
  TestReceiver receiver;
  TestSender sent;
  const auto target = Make(receiver);
  const auto source = Make(nobody_);
  auto lane = Lane(*source, *target);
  receiver.Hold();
  constexpr size_t kCount = 12;
  for (size_t i = 0; i < kCount; ++i) {
    ASSERT_TRUE(sent.Put(*lane, MakeMessage(i, i % 2 == 0 ? 4 * kMiB : 100)).ok());
  }
  ASSERT_TRUE(receiver.WaitAnnounced(1));
  lane.reset();
  EXPECT_EQ(sent.done(), kCount);
  EXPECT_EQ(sent.count(absl::StatusCode::kCancelled), kCount);
  // The buffers are the sender's again: whoever still reads them must not call it a message.
  for (TestMessage* message : sent.messages()) {
    std::fill(message->payload.begin(), message->payload.end(), std::byte{0xee});
  }
  receiver.Release();
  ASSERT_TRUE(receiver.WaitSettled());
  // The wires live on.
  const auto again = Lane(*source, *target);
  TestSender more;
  ASSERT_TRUE(more.Put(*again, MakeMessage(1000, 2 * kMiB)).ok());
  ASSERT_TRUE(more.WaitDone(1));
  EXPECT_EQ(more.count(absl::StatusCode::kOk), 1u);
  receiver.ExpectSound();
}

TEST_P(WireContract, ClosingAtAnyMomentNeverTearsAMessage) {
  TestReceiver receiver;
  const auto target = Make(receiver);
  const auto source = Make(nobody_);
  std::mt19937 random(3);
  for (uint64_t round = 0; round < 25; ++round) {
    TestSender sent;
    auto lane = Lane(*source, *target);
    for (uint64_t i = 0; i < 6; ++i) {
      const size_t size = i % 2 == 0 ? kMiB : 3000;
      ASSERT_TRUE(sent.Put(*lane, MakeMessage(round * 100 + i, size)).ok());
    }
    ASSERT_TRUE(sent.WaitDone(random() % 4));
    lane.reset();
    EXPECT_EQ(sent.done(), 6u);
    EXPECT_EQ(sent.count(absl::StatusCode::kOk) + sent.count(absl::StatusCode::kCancelled), 6u);
    for (TestMessage* message : sent.messages()) {
      std::fill(message->payload.begin(), message->payload.end(), std::byte{0xee});
    }
  }
  ASSERT_TRUE(receiver.WaitSettled());
  receiver.ExpectSound();
}

TEST_P(WireContract, WhenTheReceivingWireGoesEveryMessageIsSettled) {
  for (int round = 0; round < 5; ++round) {
    TestReceiver receiver;
    TestSender sent;
    auto target = Make(receiver);
    const auto source = Make(nobody_);
    const auto lane = Lane(*source, *target);
    constexpr size_t kCount = 40;
    for (size_t i = 0; i < kCount; ++i) {
      ASSERT_TRUE(sent.Put(*lane, MakeMessage(i, kMiB)).ok());
    }
    ASSERT_TRUE(receiver.WaitAnnounced(static_cast<size_t>(1 + 3 * round)));
    target.reset();
    receiver.ExpectSound();  // Settled when the destructor has returned, not some time later.
    ASSERT_TRUE(sent.WaitDone(kCount));
    EXPECT_EQ(sent.count(absl::StatusCode::kOk) + sent.count(absl::StatusCode::kUnavailable),
              kCount);
    EXPECT_LE(sent.count(absl::StatusCode::kOk), receiver.landed());
    // If all messages had arrived in time, the next one notices the loss.
    const size_t arrived = sent.count(absl::StatusCode::kOk);
    const absl::Status late = sent.Put(*lane, MakeMessage(99, 10));
    if (late.ok()) {
      ASSERT_TRUE(sent.WaitDone(kCount + 1));
      EXPECT_EQ(sent.count(absl::StatusCode::kOk), arrived);
    } else {
      EXPECT_EQ(late.code(), absl::StatusCode::kUnavailable);
    }
  }
}

TEST_P(WireContract, ConnectingToWhatIsGoneIsUnavailable) {
  TestReceiver receiver;
  auto target = Make(receiver);
  const auto source = Make(nobody_);
  const std::string address = target->address();
  target.reset();
  EXPECT_EQ(source->Connect(address, 2000).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(source->Connect("", 2000).ok());
  EXPECT_FALSE(source->Connect(std::string(100'000, 'x'), 2000).ok());
}

TEST_P(WireContract, LeavesNothingBehind) {
  TestReceiver receiver;
  const auto cycles = [&](int wires, uint64_t lanes) {
    size_t max = 0;
    for (int i = 0; i < wires; ++i) {
      const auto target = Make(receiver);
      const auto source = Make(nobody_);
      for (uint64_t j = 0; j < lanes; ++j) {
        TestSender sent;
        const auto lane = Lane(*source, *target);
        EXPECT_TRUE(sent.Put(*lane, MakeMessage(j, 10'000)).ok());
        EXPECT_TRUE(sent.WaitDone(1));
        max = std::max(max, OpenDescriptors());
      }
    }
    return max;
  };
  cycles(2, 2);  // Memory that is allocated once only.
  const size_t descriptors = OpenDescriptors();
  const size_t threads = RunningThreads();
  cycles(10, 1);
  const size_t max = cycles(1, 100);
  EXPECT_EQ(OpenDescriptors(), descriptors);
  EXPECT_EQ(RunningThreads(), threads);
  // The peer notices a close in its own time, but a hundred lanes are never there at once.
  EXPECT_LE(max, descriptors + 150);
  receiver.ExpectSound();
}

INSTANTIATE_TEST_SUITE_P(Wires, WireContract, testing::ValuesIn(AllWireKinds()),
                         [](const auto& param) {
                           std::string name = param.param.name;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace penstock
