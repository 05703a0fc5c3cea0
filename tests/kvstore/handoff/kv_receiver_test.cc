// The receiver's own duties: admission, streams, staging. Whole handoffs are in kv_sender_test.cc
// and tests/world.
#include "kvstore/handoff/kv_receiver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <list>

#include "base/crc32c.h"

namespace penstock {
namespace {

using std::chrono::milliseconds;

constexpr KvLayout kLayout{.layers = 2, .kv_heads = 1, .head_dim = 8, .block_tokens = 16};

class FakeChannel final : public HandoffReceiverChannel {
 public:
  void Send(const v1::HandoffReceiverMessage& message) override { sent.push_back(message); }
  void Close() override { closed = true; }
  std::vector<v1::HandoffReceiverMessage> sent;
  bool closed = false;
};

v1::HandoffSenderMessage Message(const HandoffKey& key) {
  v1::HandoffSenderMessage message;
  SetSessionKey(key, message.mutable_key());
  return message;
}

v1::HandoffSenderMessage Offer(const HandoffKey& key, uint32_t tokens) {
  auto message = Message(key);
  message.mutable_offer()->set_model_fingerprint(1);
  message.mutable_offer()->set_layout_fingerprint(kLayout.Fingerprint());
  message.mutable_offer()->set_tokens(tokens);
  return message;
}

class KvReceiverTest : public testing::Test {
 protected:
  struct Call {
    bool admitted = false;
    std::optional<absl::Status> end;
    ReceivedKv kv;
  };

  KvReceiverTest() { receiver_->SetWireAddress("here"); }

  // They outlive the receiver, whose end calls back into them.
  std::vector<Call>& NewCalls(size_t count) { return calls_.emplace_back(count); }
  Call& NewCall() { return NewCalls(1).front(); }

  KvReceiverOptions Options() {
    return {.timing = {.lease = milliseconds(300), .offer_hold = milliseconds(200)},
            .staging_bytes = 8192,
            .waiting_max = 2,
            .handoffs_max = 6,
            .writer = [this](const SlabWrite& write, std::function<void()> written) {
              writes_.push_back({write, std::move(written)});
            }};
  }

  absl::Status Expect(Call& call, const HandoffKey& key, uint32_t tokens, int64_t blocks) {
    return receiver_->Expect({.key = key,
                              .tokens = tokens,
                              .blocks = blocks,
                              .on_admitted = [&] { call.admitted = true; },
                              .on_committed =
                                  [&](ReceivedKv kv) {
                                    call.end = absl::OkStatus();
                                    call.kv = std::move(kv);
                                  },
                              .on_failed = [&](const absl::Status& why) { call.end = why; }});
  }

  // Up to Opened.
  std::shared_ptr<FakeChannel> Stream(const HandoffKey& key, uint32_t tokens) {
    auto channel = std::make_shared<FakeChannel>();
    receiver_->OnControl(channel, Offer(key, tokens));
    auto open = Message(key);
    open.mutable_open();
    receiver_->OnControl(channel, open);
    return channel;
  }

  struct Slab {
    SlabHeader header;
    std::vector<std::byte> payload;
  };
  Slab MakeSlab(const HandoffKey& key, uint32_t sequence, uint16_t layer, uint32_t blocks) {
    Slab slab;
    slab.payload.assign(blocks * kLayout.LayerBytes(), std::byte(0x10 + sequence));
    slab.header = {.key = key,
                   .sequence = sequence,
                   .first_layer = layer,
                   .layers = 1,
                   .first_block = 0,
                   .blocks = blocks,
                   .raw_bytes = static_cast<uint32_t>(slab.payload.size()),
                   .payload_bytes = static_cast<uint32_t>(slab.payload.size()),
                   .payload_crc = Crc32c(slab.payload)};
    return slab;
  }
  absl::StatusOr<std::byte*> Announce(const Slab& slab) {
    return receiver_->OnAnnounced(EncodeSlabHeader(slab.header), slab.payload.size());
  }
  void Land(const Slab& slab, std::byte* target) {
    std::copy(slab.payload.begin(), slab.payload.end(), target);
    receiver_->OnLanded(EncodeSlabHeader(slab.header), {target, slab.payload.size()});
  }

  struct Write {
    SlabWrite write;
    std::function<void()> written;
  };

  ManualClock clock_;
  std::unique_ptr<BlockPool> pool_ = *BlockPool::Create(kLayout, 10);
  std::list<std::vector<Call>> calls_;
  std::vector<Write> writes_;
  std::unique_ptr<KvReceiver> receiver_ = std::make_unique<KvReceiver>(
      Options(), HandoffFormat{.model_fingerprint = 1, .layout = kLayout}, clock_, *pool_);
};

TEST_F(KvReceiverTest, SaysWhatItCannotExpect) {
  Call& call = NewCall();
  EXPECT_TRUE(absl::IsInvalidArgument(Expect(call, {1, 0, 0}, 0, 1)));
  EXPECT_TRUE(absl::IsInvalidArgument(Expect(call, {1, 0, 0}, 33, 2)));
  const absl::Status more = Expect(call, {1, 0, 0}, 16, 11);
  EXPECT_TRUE(absl::IsResourceExhausted(more));
  EXPECT_THAT(penstock::Message(more),
              testing::HasSubstr("needs 11 KV blocks, and this worker has 10"));
  ASSERT_TRUE(Expect(call, {1, 1, 0}, 16, 2).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(Expect(call, {1, 1, 0}, 16, 2)));
  EXPECT_TRUE(absl::IsFailedPrecondition(Expect(call, {1, 0, 0}, 16, 2)));
  EXPECT_FALSE(call.end.has_value());
}

TEST_F(KvReceiverTest, WaitsInOrderUntilBlocksComeFree) {
  std::vector<Call>& calls = NewCalls(5);
  ASSERT_TRUE(Expect(calls[0], {0, 0, 0}, 16, 8).ok());
  EXPECT_TRUE(calls[0].admitted);
  ASSERT_TRUE(Expect(calls[1], {1, 0, 0}, 16, 5).ok());
  ASSERT_TRUE(Expect(calls[2], {2, 0, 0}, 16, 1).ok());  // Fits, but it is not its turn.
  EXPECT_FALSE(calls[1].admitted || calls[2].admitted);
  EXPECT_EQ(receiver_->load().waiting, 2u);
  const absl::Status full = Expect(calls[3], {3, 0, 0}, 16, 1);
  EXPECT_TRUE(absl::IsResourceExhausted(full));
  EXPECT_THAT(penstock::Message(full),
              testing::HasSubstr("2 requests wait for KV blocks, the limit is 2"));
  EXPECT_FALSE(calls[3].end.has_value());  // It was told by the return value.

  receiver_->Cancel({0, 0, 0}, absl::CancelledError("client"));
  EXPECT_TRUE(absl::IsCancelled(*calls[0].end));
  EXPECT_TRUE(calls[1].admitted && calls[2].admitted);
  EXPECT_EQ(pool_->blocks_reserved(), 6);
  receiver_->Cancel({1, 0, 0}, absl::CancelledError("client"));
  receiver_->Cancel({2, 0, 0}, absl::CancelledError("client"));
  EXPECT_EQ(pool_->blocks_reserved(), 0);
}

TEST_F(KvReceiverTest, TheSenderIsToldThatTheQueueIsFull) {
  std::vector<Call>& calls = NewCalls(4);
  ASSERT_TRUE(Expect(calls[0], {0, 0, 0}, 16, 8).ok());
  ASSERT_TRUE(Expect(calls[1], {1, 0, 0}, 16, 5).ok());
  ASSERT_TRUE(Expect(calls[2], {2, 0, 0}, 16, 5).ok());
  auto channel = std::make_shared<FakeChannel>();
  receiver_->OnControl(channel, Offer({3, 0, 0}, 16));
  EXPECT_TRUE(absl::IsResourceExhausted(Expect(calls[3], {3, 0, 0}, 16, 1)));
  ASSERT_TRUE(channel->sent.back().has_abort());
  EXPECT_TRUE(absl::IsResourceExhausted(StatusOfAbort(channel->sent.back().abort())));
}

TEST_F(KvReceiverTest, BlocksFreedByOthersAdmitTheNext) {
  auto held = pool_->Reserve(8);
  Call& call = NewCall();
  ASSERT_TRUE(Expect(call, {1, 0, 0}, 16, 5).ok());
  EXPECT_FALSE(call.admitted);
  *held = BlockCredit();
  receiver_->OnBlocksFreed();
  EXPECT_TRUE(call.admitted);
}

TEST_F(KvReceiverTest, WhoGivesUpLeavesTheLine) {
  auto held = pool_->Reserve(8);
  std::vector<Call>& calls = NewCalls(2);
  ASSERT_TRUE(Expect(calls[0], {0, 0, 0}, 16, 5).ok());
  ASSERT_TRUE(Expect(calls[1], {1, 0, 0}, 16, 5).ok());
  receiver_->Cancel({0, 0, 0}, absl::CancelledError("client"));
  EXPECT_EQ(receiver_->load().waiting, 1u);
  *held = BlockCredit();
  receiver_->Tick();
  EXPECT_TRUE(calls[1].admitted);
  EXPECT_FALSE(calls[0].admitted);
}

TEST_F(KvReceiverTest, ANewEpochTakesThePlaceOfOlderOnes) {
  Call& old = NewCall();
  Call& fresh = NewCall();
  ASSERT_TRUE(Expect(old, {1, 0, 0}, 16, 8).ok());
  auto channel = Stream({1, 0, 0}, 16);
  ASSERT_TRUE(Expect(fresh, {1, 1, 5}, 16, 8).ok());
  EXPECT_TRUE(absl::IsCancelled(*old.end));
  EXPECT_TRUE(fresh.admitted);
  EXPECT_TRUE(channel->sent.back().has_abort());
  EXPECT_TRUE(channel->closed);
  // And the old one cannot come back.
  auto late = std::make_shared<FakeChannel>();
  receiver_->OnControl(late, Offer({1, 0, 9}, 16));
  EXPECT_TRUE(late->sent.at(0).has_abort());
}

TEST_F(KvReceiverTest, AnOfferMayComeFirst) {
  auto channel = std::make_shared<FakeChannel>();
  receiver_->OnControl(channel, Offer({1, 0, 0}, 16));
  EXPECT_TRUE(channel->sent.empty());
  Call& call = NewCall();
  ASSERT_TRUE(Expect(call, {1, 0, 0}, 16, 2).ok());
  ASSERT_EQ(channel->sent.size(), 1u);
  EXPECT_EQ(channel->sent[0].credit().wire_address(), "here");
}

TEST_F(KvReceiverTest, AnOfferThatNobodyExpectsIsSentAway) {
  auto channel = std::make_shared<FakeChannel>();
  receiver_->OnControl(channel, Offer({1, 0, 0}, 16));
  clock_.Advance(milliseconds(201));
  receiver_->Tick();
  EXPECT_TRUE(channel->sent.back().abort().retry_elsewhere());
  EXPECT_TRUE(channel->closed);
  Call& call = NewCall();
  EXPECT_TRUE(absl::IsUnavailable(Expect(call, {1, 0, 0}, 16, 2)));
}

TEST_F(KvReceiverTest, AnOfferForACancelledCallIsSentAwayAtOnce) {
  Call& call = NewCall();
  ASSERT_TRUE(Expect(call, {1, 0, 0}, 16, 2).ok());
  receiver_->Cancel({1, 0, 0}, absl::CancelledError("client"));
  auto channel = std::make_shared<FakeChannel>();
  receiver_->OnControl(channel, Offer({1, 0, 0}, 16));
  ASSERT_TRUE(channel->sent.at(0).has_abort());
  EXPECT_FALSE(channel->sent[0].abort().retry_elsewhere());
}

TEST_F(KvReceiverTest, StrangersOnOtherStreamsAreRefused) {
  Call& call = NewCall();
  ASSERT_TRUE(Expect(call, {1, 0, 0}, 16, 2).ok());
  auto channel = Stream({1, 0, 0}, 16);
  auto stranger = std::make_shared<FakeChannel>();
  receiver_->OnControl(stranger, Offer({1, 0, 0}, 16));
  EXPECT_TRUE(stranger->sent.at(0).has_abort());
  EXPECT_TRUE(stranger->closed);
  EXPECT_FALSE(call.end.has_value());
  receiver_->OnControlClosed(stranger.get());
  EXPECT_FALSE(call.end.has_value());
  auto unknown = std::make_shared<FakeChannel>();
  auto heartbeat = Message({9, 9, 9});
  heartbeat.mutable_heartbeat();
  receiver_->OnControl(unknown, heartbeat);
  EXPECT_TRUE(unknown->sent.at(0).has_abort());
  auto abort = Message({9, 9, 9});
  abort.mutable_abort();
  auto quiet = std::make_shared<FakeChannel>();
  receiver_->OnControl(quiet, abort);
  EXPECT_TRUE(quiet->sent.empty());  // No abort is answered by an abort.
}

TEST_F(KvReceiverTest, OpenHandoffsAreBounded) {
  std::vector<std::shared_ptr<FakeChannel>> channels;
  for (uint64_t i = 0; i < 7; ++i) {
    channels.push_back(std::make_shared<FakeChannel>());
    receiver_->OnControl(channels.back(), Offer({i, 0, 0}, 16));
  }
  EXPECT_TRUE(channels[5]->sent.empty());
  EXPECT_TRUE(channels[6]->sent.at(0).abort().retry_elsewhere());
  Call& call = NewCall();
  EXPECT_TRUE(absl::IsResourceExhausted(Expect(call, {8, 0, 0}, 16, 1)));
}

TEST_F(KvReceiverTest, PagesAreBoundLateAndQuarantinedUntilWritesEnd) {
  Call& call = NewCall();
  ASSERT_TRUE(Expect(call, {1, 0, 0}, 32, 4).ok());
  EXPECT_EQ(pool_->blocks_used(), 0);
  auto channel = Stream({1, 0, 0}, 32);
  EXPECT_EQ(pool_->blocks_used(), 2);
  EXPECT_EQ(pool_->blocks_reserved(), 2);
  const Slab slab = MakeSlab({1, 0, 0}, 0, 0, 2);
  auto target = Announce(slab);
  ASSERT_TRUE(target.ok()) << target.status();
  Land(slab, *target);
  ASSERT_EQ(writes_.size(), 1u);
  EXPECT_EQ(writes_[0].write.blocks.size(), 2u);
  receiver_->OnControlClosed(channel.get());
  EXPECT_TRUE(RetryElsewhere(*call.end));
  EXPECT_EQ(receiver_->load().quarantined_blocks, 2);
  EXPECT_EQ(pool_->blocks_used(), 2);
  EXPECT_GT(receiver_->load().staging_used, 0u);
  writes_[0].written();
  EXPECT_EQ(receiver_->load().quarantined_blocks, 0);
  EXPECT_EQ(pool_->blocks_used() + pool_->blocks_reserved(), 0);
  EXPECT_EQ(receiver_->load().staging_used, 0u);
}

TEST_F(KvReceiverTest, CommitsWhatIsWhole) {
  Call& call = NewCall();
  ASSERT_TRUE(Expect(call, {1, 0, 0}, 32, 4).ok());
  auto channel = Stream({1, 0, 0}, 32);
  uint64_t digest = kDigestStart;
  for (uint32_t i = 0; i < 2; ++i) {
    const Slab slab = MakeSlab({1, 0, 0}, i, static_cast<uint16_t>(i), 2);
    digest = DigestSlab(digest, slab.header);
    Land(slab, *Announce(slab));
    writes_[i].written();
  }
  auto commit = Message({1, 0, 0});
  commit.mutable_commit()->set_slabs(2);
  commit.mutable_commit()->set_digest(digest);
  receiver_->OnControl(channel, commit);
  ASSERT_TRUE(call.end.has_value() && call.end->ok());
  EXPECT_EQ(call.kv.blocks.size(), 2u);
  EXPECT_EQ(call.kv.credit.blocks(), 2);
  EXPECT_TRUE(channel->sent.back().has_committed());
  receiver_->OnControl(channel, commit);  // It is asked again.
  EXPECT_TRUE(channel->sent.back().has_committed());
  receiver_->Cancel({1, 0, 0}, absl::CancelledError("late"));
  EXPECT_EQ(pool_->blocks_used(), 2);  // They are the decode engine's now.
}

TEST_F(KvReceiverTest, SlabsOfNobodyAreRefusedAndStagingIsBounded) {
  Call& call = NewCall();
  EXPECT_TRUE(absl::IsNotFound(Announce(MakeSlab({1, 0, 0}, 0, 0, 1)).status()));
  ASSERT_TRUE(Expect(call, {1, 0, 0}, 32, 4).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(Announce(MakeSlab({1, 0, 0}, 0, 0, 1)).status()));
  Stream({1, 0, 0}, 32);
  EXPECT_TRUE(absl::IsNotFound(Announce(MakeSlab({1, 0, 1}, 0, 0, 1)).status()));
  const Slab slab = MakeSlab({1, 0, 0}, 0, 0, 1);
  EXPECT_TRUE(absl::IsDataLoss(
      receiver_->OnAnnounced(EncodeSlabHeader(slab.header), slab.payload.size() + 1).status()));
  EXPECT_FALSE(receiver_->OnAnnounced({}, 0).ok());
  const auto a = Announce(slab);  // 4 KiB each, of 8.
  const auto b = Announce(slab);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Announce(slab).status()));
  receiver_->OnLost(EncodeSlabHeader(slab.header), *a);
  EXPECT_TRUE(Announce(slab).ok());
}

TEST_F(KvReceiverTest, CallbacksMayCallTheReceiver) {
  Call& other = NewCall();
  ASSERT_TRUE(Expect(other, {2, 0, 0}, 16, 2).ok());
  bool failed = false;
  ASSERT_TRUE(receiver_
                  ->Expect({.key = {1, 0, 0},
                            .tokens = 16,
                            .blocks = 2,
                            .on_admitted =
                                [&] {
                                  receiver_->Cancel({1, 0, 0}, absl::CancelledError("at once"));
                                  receiver_->Cancel({2, 0, 0}, absl::CancelledError("too"));
                                },
                            .on_committed = [](const ReceivedKv&) {},
                            .on_failed = [&](const absl::Status&) { failed = true; }})
                  .ok());
  EXPECT_TRUE(failed);
  EXPECT_TRUE(other.end.has_value());
  EXPECT_EQ(receiver_->load().handoffs, 0u);
}

TEST_F(KvReceiverTest, ItsEndAnswersEveryone) {
  Call& call = NewCall();
  ASSERT_TRUE(Expect(call, {1, 0, 0}, 32, 4).ok());
  auto channel = Stream({1, 0, 0}, 32);
  receiver_.reset();
  EXPECT_TRUE(RetryElsewhere(*call.end));
  EXPECT_TRUE(channel->sent.back().has_abort());
  EXPECT_EQ(pool_->blocks_used() + pool_->blocks_reserved(), 0);
}

TEST_F(KvReceiverTest, HeldPagesComeFirstAndAdmissionIsAskedAgain) {
  Call& call = NewCall();
  auto cached = pool_->Reserve(1);
  std::vector<BlockRef> held = cached->Take(1);
  const uint32_t page = held.front().id();
  int asked = 0;
  ASSERT_TRUE(receiver_
                  ->Expect({.key = {1, 0, 0},
                            .tokens = 32,
                            .prompt_id = std::string(16, 'p'),
                            .blocks = 2,
                            .admit = [&]() -> std::optional<KvAdmission> {
                              if (++asked < 3) return std::nullopt;
                              return KvAdmission{.held = std::move(held),
                                                 .credit = *pool_->Reserve(1)};
                            },
                            .on_admitted = [&] { call.admitted = true; },
                            .on_committed = [](ReceivedKv) {},
                            .on_failed = [&](const absl::Status& why) { call.end = why; }})
                  .ok());
  EXPECT_EQ(receiver_->load().waiting, 1u);
  while (!call.admitted && asked < 3) receiver_->OnBlocksFreed();
  EXPECT_TRUE(call.admitted);
  auto offer = Offer({1, 0, 0}, 32);
  offer.mutable_offer()->set_prompt_id(std::string(16, 'p'));
  auto channel = std::make_shared<FakeChannel>();
  receiver_->OnControl(channel, offer);
  auto open = Message({1, 0, 0});
  open.mutable_open();
  receiver_->OnControl(channel, open);
  EXPECT_EQ(pool_->blocks_used(), 2);
  Slab slab = MakeSlab({1, 0, 0}, 0, 0, 1);
  slab.header.first_block = 1;
  slab.header.payload_crc = Crc32c(slab.payload);
  Land(slab, *Announce(slab));
  ASSERT_EQ(writes_.size(), 1u);
  EXPECT_NE(writes_[0].write.blocks.at(0), page);
  writes_[0].written();
}

}  // namespace
}  // namespace penstock
