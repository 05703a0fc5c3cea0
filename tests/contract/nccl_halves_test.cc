// The two halves of NCCL's part of a lane, with a channel that does what the test says: what they
// ask of it, in which order, and what they refuse of a peer.

#include "kvstore/wire/host/nccl_halves.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/contract/wire_support.h"

namespace penstock {
namespace {

constexpr size_t kSlots = 2;
constexpr size_t kSlotBytes = 100;

struct FakeChannel final : NcclChannel {
  explicit FakeChannel(Events given) : events(std::move(given)) {}
  std::byte* slot(size_t index) override { return memory.data() + index * kSlotBytes; }
  void Post(const Piece& piece) override {
    posts.push_back({piece.slot, piece.bytes});
    pieces.push_back(piece);
  }
  void Stop(bool) override { stopped = true; }
  void PeerStopped() override {}
  void WhenQuiet(std::function<void()> call) override { call(); }
  void Read(std::span<const std::byte>, OnRead) override {}

  Events events;
  std::vector<std::byte> memory = std::vector<std::byte>(kSlots * kSlotBytes);
  std::vector<std::pair<size_t, size_t>> posts;  // slot, bytes
  std::vector<Piece> pieces;                     // those posted
  bool stopped = false;
};

struct FakeContext final : NcclContext {
  const std::string& version() const override { return text; }
  const NcclOptions& options() const override { return given; }
  std::unique_ptr<NcclChannel> NewSender(NcclChannel::Events events) override {
    return New(std::move(events));
  }
  std::unique_ptr<NcclChannel> NewReceiver(const std::string&,
                                           NcclChannel::Events events) override {
    return New(std::move(events));
  }
  std::unique_ptr<NcclChannel> New(NcclChannel::Events events) {
    auto made = std::make_unique<FakeChannel>(std::move(events));
    channel = made.get();
    return made;
  }

  std::string text = "2.28.9";
  NcclOptions given{.slot_bytes = kSlotBytes, .slots = kSlots};
  FakeChannel* channel = nullptr;
};

std::vector<std::byte> Bytes(size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + 1);
  return bytes;
}

MATCHER_P3(IsPiece, message, offset, size, "") {
  return arg.message == message && arg.offset == offset && arg.size == size;
}

class NcclReceivingTest : public testing::Test {
 protected:
  // Copies as a GPU would: the slot's bytes are those of the message from `offset` on.
  void Move(const std::vector<std::byte>& message, size_t offset) {
    const auto [slot, bytes] = context_.channel->posts.at(moved_++);
    std::memcpy(context_.channel->slot(slot), message.data() + offset, bytes);
    context_.channel->events.on_moved(slot);
  }
  void Posted() { context_.channel->events.on_posted(0); }

  FakeContext context_;
  size_t moved_ = 0;
  std::vector<NcclPiece> told_;
  std::vector<uint64_t> received_;
  NcclReceiving receiving_{
      context_,
      std::string(128, 'x'),
      {.on_posted = [this](const NcclPiece& piece) { told_.push_back(piece); },
       .on_received = [this](uint64_t message) { received_.push_back(message); },
       .on_failed = [](const absl::Status&) {}}};
};

TEST_F(NcclReceivingTest, PutsPiecesTogetherInTheOrderOfTheirPosts) {
  const auto first = Bytes(250);
  const auto second = Bytes(60);
  std::vector<std::byte> first_target(250);
  std::vector<std::byte> second_target(60);
  receiving_.Receive(7, {.data = first_target.data()}, 250);
  EXPECT_TRUE(context_.channel->posts.empty());  // Not ready.
  context_.channel->events.on_ready();
  receiving_.Receive(8, {.data = second_target.data()}, 60);
  EXPECT_EQ(context_.channel->posts.size(), kSlots);
  EXPECT_TRUE(told_.empty());  // Enqueued it is when the channel says so.
  Posted();
  EXPECT_THAT(told_, testing::ElementsAre(IsPiece(7u, 0u, 100u)));
  Posted();
  Move(first, 0);
  Posted();
  Move(first, 100);
  Posted();
  EXPECT_TRUE(received_.empty());
  Move(first, 200);
  EXPECT_THAT(received_, testing::ElementsAre(7));
  Move(second, 0);
  EXPECT_THAT(received_, testing::ElementsAre(7, 8));
  EXPECT_EQ(first_target, first);
  EXPECT_EQ(second_target, second);
  EXPECT_THAT(told_, testing::ElementsAre(IsPiece(7u, 0u, 100u), IsPiece(7u, 100u, 100u),
                                          IsPiece(7u, 200u, 50u), IsPiece(8u, 0u, 60u)));
}

// The channel copies what is to land in GPU memory; nobody else touches it.
TEST_F(NcclReceivingTest, NamesTheGpuMemoryWherePiecesLand) {
  std::byte* const target = EmulatedGpu()->AllocateForWires(150);
  context_.channel->events.on_ready();
  receiving_.Receive(7, {.data = target, .memory = MemoryKind::kDevice}, 150);
  Posted();
  Posted();
  const auto& pieces = context_.channel->pieces;
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].to, target);
  EXPECT_EQ(pieces[1].to, target + 100);
  for (const auto& piece : pieces) context_.channel->events.on_moved(piece.slot);
  EXPECT_THAT(received_, testing::ElementsAre(7));
  EmulatedGpu()->FreeForWires(target, 150);
}

class NcclSendingTest : public testing::Test {
 protected:
  FakeContext context_;
  std::vector<std::byte> payload_ = Bytes(350);
  NcclSending sending_{context_,
                       {.on_id = [](const std::string&) {},
                        .on_ready = [] {},
                        .on_failed = [](const absl::Status&) {},
                        .payload = [this](uint64_t message) -> WirePayload {
                          if (message != 5) return {};
                          return {.bytes = payload_, .memory = memory_};
                        }}};
  MemoryKind memory_ = MemoryKind::kHost;
};

TEST_F(NcclSendingTest, CopiesAPieceWhenASlotIsFree) {
  for (uint64_t offset = 0; offset < 300; offset += 100) {
    ASSERT_TRUE(sending_.Send({.message = 5, .offset = offset, .size = 100}).ok());
  }
  FakeChannel& channel = *context_.channel;
  ASSERT_EQ(channel.posts.size(), kSlots);
  EXPECT_TRUE(sending_.Waiting(5));
  EXPECT_FALSE(sending_.Waiting(6));
  for (size_t i = 0; i < kSlots; ++i) {
    EXPECT_EQ(std::memcmp(channel.slot(channel.posts[i].first), payload_.data() + i * 100, 100), 0);
  }
  channel.events.on_moved(channel.posts[0].first);
  EXPECT_FALSE(sending_.Waiting(5));
  ASSERT_EQ(channel.posts.size(), kSlots + 1);
  EXPECT_EQ(std::memcmp(channel.slot(channel.posts[kSlots].first), payload_.data() + 200, 100), 0);
}

TEST_F(NcclSendingTest, LeavesTheCopyOfGpuMemoryToTheChannel) {
  memory_ = MemoryKind::kDevice;
  ASSERT_TRUE(sending_.Send({.message = 5, .offset = 250, .size = 100}).ok());
  ASSERT_EQ(context_.channel->pieces.size(), 1u);
  EXPECT_EQ(context_.channel->pieces[0].from, payload_.data() + 250);
  EXPECT_EQ(context_.channel->memory, std::vector<std::byte>(kSlots * kSlotBytes));
}

TEST_F(NcclSendingTest, RefusesWhatNoReceiverAsksFor) {
  const NcclPiece wrong[] = {
      {.message = 6, .offset = 0, .size = 10},     // not there
      {.message = 5, .offset = 0, .size = 0},      // nothing
      {.message = 5, .offset = 0, .size = 101},    // larger than a slot
      {.message = 5, .offset = 251, .size = 100},  // past the end
      {.message = 5, .offset = ~uint64_t{0} - 5, .size = 10},
  };
  for (const NcclPiece& piece : wrong) {
    EXPECT_EQ(sending_.Send(piece).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_TRUE(context_.channel->posts.empty());
  // Nor more of them than anybody has slots.
  absl::Status status;
  for (int i = 0; i < 100'000 && status.ok(); ++i) {
    status = sending_.Send({.message = 5, .offset = 0, .size = 100});
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(NcclSendingTest, ForgetsWhatWaitsWhenItIsStopped) {
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(sending_.Send({.message = 5, .offset = 0, .size = 100}).ok());
  }
  EXPECT_TRUE(sending_.Waiting(5));
  sending_.Stop(/*failed=*/true);
  EXPECT_TRUE(context_.channel->stopped);
  EXPECT_FALSE(sending_.Waiting(5));
}

}  // namespace
}  // namespace penstock
