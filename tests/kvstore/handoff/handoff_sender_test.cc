#include "kvstore/handoff/handoff_sender.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock {
namespace {

using std::chrono::milliseconds;

constexpr KvLayout kLayout{.layers = 4, .kv_heads = 1, .head_dim = 8, .block_tokens = 16};
constexpr HandoffKey kKey{.session = 5, .epoch = 2, .nonce = 77};
constexpr TimePoint kStart{milliseconds(1000)};

// The kinds of actions, for a look at their order.
std::string Kinds(const HandoffSender::Actions& actions) {
  std::string kinds;
  for (const auto& action : actions) {
    if (!kinds.empty()) kinds += ' ';
    if (const auto* send = std::get_if<HandoffSender::Send>(&action)) {
      const v1::HandoffSenderMessage& m = send->message;
      EXPECT_EQ(HandoffKeyOf(m.key()), kKey);
      kinds += m.has_offer()    ? "Offer"
               : m.has_open()   ? "Open"
               : m.has_commit() ? "Commit"
               : m.has_abort()  ? "Abort"
                                : "Heartbeat";
    } else if (const auto* reached = std::get_if<HandoffSender::Reached>(&action)) {
      kinds += HandoffStateName(reached->state);
    } else {
      kinds += std::get_if<HandoffSender::OpenLane>(&action)    ? "OpenLane"
               : std::get_if<HandoffSender::Committed>(&action) ? "COMMITTED"
               : std::get_if<HandoffSender::Failed>(&action)    ? "FAILED"
                                                                : "RELEASE";
    }
  }
  return kinds;
}

const absl::Status& Failure(const HandoffSender::Actions& actions) {
  for (const auto& action : actions) {
    if (const auto* failed = std::get_if<HandoffSender::Failed>(&action)) return failed->status;
  }
  ADD_FAILURE() << "no failure in: " << Kinds(actions);
  static const absl::Status none;
  return none;
}

v1::HandoffReceiverMessage Message(const HandoffKey& key = kKey) {
  v1::HandoffReceiverMessage message;
  SetSessionKey(key, message.mutable_key());
  return message;
}
v1::HandoffReceiverMessage Credit(const HandoffKey& key = kKey) {
  auto message = Message(key);
  message.mutable_credit()->set_wire_address("there");
  return message;
}
v1::HandoffReceiverMessage Opened() {
  auto message = Message();
  message.mutable_opened();
  return message;
}
v1::HandoffReceiverMessage Committed() {
  auto message = Message();
  message.mutable_committed();
  return message;
}

class HandoffSenderTest : public testing::Test {
 protected:
  static HandoffSender::Args Args() {
    return {.key = kKey,
            .format = {.model_fingerprint = 9, .layout = kLayout},
            .tokens = 40,  // Three blocks.
            .timing = {.lease = milliseconds(300)},
            .slabs = {.min = 1, .max = kLayout.LayerBytes() * 6},
            .puts_max = 2};
  }

  void ToStreaming() {
    machine_.Start(kStart);
    machine_.OnMessage(kStart, Credit());
    EXPECT_EQ(Kinds(machine_.OnLayersReady(kStart, {0, 4, 0, 3})), "Open");
    machine_.OnMessage(kStart, Opened());
    EXPECT_EQ(machine_.state(), HandoffState::kStreaming);
  }
  // Gives out, packs and hands the next slab; its sequence.
  uint32_t PutNext(TimePoint now = kStart) {
    const auto slab = machine_.NextSlab(now);
    EXPECT_TRUE(slab.has_value());
    if (!slab) return 0;
    EXPECT_EQ(Kinds(machine_.OnSlabPacked(slab->sequence, 1000 + slab->sequence)), "");
    machine_.OnSlabHanded(slab->sequence);
    return slab->sequence;
  }

  HandoffSender machine_{Args()};
};

TEST_F(HandoffSenderTest, GoesThroughItsStatesInOrder) {
  const auto start = machine_.Start(kStart);
  EXPECT_EQ(Kinds(start), "Offer offered");
  const auto& offer = std::get<HandoffSender::Send>(start[0]).message.offer();
  EXPECT_EQ(offer.tokens(), 40u);
  EXPECT_EQ(offer.model_fingerprint(), 9u);
  EXPECT_EQ(offer.layout_fingerprint(), kLayout.Fingerprint());
  EXPECT_EQ(Kinds(machine_.OnMessage(kStart, Credit())), "credited OpenLane");
  EXPECT_EQ(Kinds(machine_.OnLayersReady(kStart, {0, 2, 0, 3})), "Open");
  EXPECT_EQ(Kinds(machine_.OnLayersReady(kStart, {2, 4, 0, 3})), "");
  EXPECT_FALSE(machine_.NextSlab(kStart).has_value());  // Not before Opened.
  EXPECT_EQ(Kinds(machine_.OnMessage(kStart, Opened())), "");

  const auto first = machine_.NextSlab(kStart);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(RangeOf(*first), (KvRange{0, 2, 0, 3}));
  EXPECT_EQ(first->payload_bytes, 6 * kLayout.LayerBytes());
  machine_.OnSlabPacked(0, 1000);
  EXPECT_EQ(Kinds(machine_.OnSlabHanded(0)), "streaming");
  EXPECT_EQ(PutNext(), 1u);
  EXPECT_FALSE(machine_.NextSlab(kStart).has_value());
  EXPECT_EQ(Kinds(machine_.OnSlabSent(kStart, 1, absl::OkStatus())), "");
  v1::TokenOut token;
  token.set_token(3);
  EXPECT_EQ(Kinds(machine_.OnFinish(kStart, {token})), "");
  const auto last = machine_.OnSlabSent(kStart, 0, absl::OkStatus());
  EXPECT_EQ(Kinds(last), "landed Commit");
  const auto& commit = std::get<HandoffSender::Send>(last[1]).message.commit();
  EXPECT_EQ(commit.slabs(), 2u);
  EXPECT_EQ(commit.first(0).token(), 3u);
  EXPECT_EQ(Kinds(machine_.OnMessage(kStart, Committed())), "committed COMMITTED RELEASE");
  EXPECT_TRUE(machine_.over());
  EXPECT_EQ(machine_.kv_bytes(), 3 * kLayout.PayloadBytes());
  // Whatever comes after that changes nothing.
  EXPECT_EQ(Kinds(machine_.OnPeerGone(absl::UnavailableError("x"))), "");
  EXPECT_EQ(Kinds(machine_.OnMessage(kStart, Committed())), "");
  EXPECT_EQ(Kinds(machine_.Tick(kStart + std::chrono::hours(1))), "");
}

TEST_F(HandoffSenderTest, AllMayBeComputedBeforeTheCredit) {
  machine_.Start(kStart);
  EXPECT_EQ(Kinds(machine_.OnLayersReady(kStart, {0, 4, 0, 3})), "");
  EXPECT_EQ(Kinds(machine_.OnFinish(kStart, {})), "");
  EXPECT_EQ(Kinds(machine_.OnMessage(kStart, Credit())), "credited OpenLane Open");
}

TEST_F(HandoffSenderTest, MessagesOfOtherAttemptsAreIgnored) {
  machine_.Start(kStart);
  for (const HandoffKey other :
       {HandoffKey{4, 2, 77}, HandoffKey{5, 1, 77}, HandoffKey{5, 2, 78}}) {
    EXPECT_EQ(Kinds(machine_.OnMessage(kStart, Credit(other))), "");
    auto abort = Message(other);
    abort.mutable_abort();
    EXPECT_EQ(Kinds(machine_.OnMessage(kStart, abort)), "");
  }
  EXPECT_EQ(machine_.state(), HandoffState::kOffered);
}

TEST_F(HandoffSenderTest, PutsAreBoundedAndFailedOnesComeAgainUnchanged) {
  ToStreaming();
  EXPECT_EQ(PutNext(), 0u);
  EXPECT_EQ(PutNext(), 1u);
  EXPECT_FALSE(machine_.NextSlab(kStart).has_value());
  machine_.OnSlabSent(kStart, 0, absl::UnavailableError("refused"));
  EXPECT_TRUE(machine_.retrying());
  EXPECT_FALSE(machine_.NextSlab(kStart).has_value());  // After a pause.
  const auto again = machine_.NextSlab(kStart + milliseconds(5));
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(again->sequence, 0u);
  EXPECT_EQ(RangeOf(*again), (KvRange{0, 2, 0, 3}));
  EXPECT_FALSE(machine_.retrying());
}

TEST_F(HandoffSenderTest, GivesUpASlabThatNeverArrives) {
  ToStreaming();
  TimePoint now = kStart;
  for (int attempts = 1;; ++attempts) {
    ASSERT_LT(attempts, 100);
    PutNext(now);
    const auto actions = machine_.OnSlabSent(now, 0, absl::UnavailableError("refused"));
    now += milliseconds(200);
    if (actions.empty()) continue;
    EXPECT_EQ(Kinds(actions), "Abort FAILED RELEASE");
    EXPECT_TRUE(RetryElsewhere(Failure(actions)));
    break;
  }
}

TEST_F(HandoffSenderTest, PagesThatChangedUnderneathAreSeen) {
  ToStreaming();
  PutNext();
  machine_.OnSlabSent(kStart, 0, absl::UnavailableError("refused"));
  ASSERT_TRUE(machine_.NextSlab(kStart + milliseconds(5)).has_value());
  const auto actions = machine_.OnSlabPacked(0, 4711);
  EXPECT_EQ(Kinds(actions), "Abort FAILED");
  EXPECT_TRUE(absl::IsInternal(Failure(actions)));
}

TEST_F(HandoffSenderTest, PagesStayUntilEveryPutHasEnded) {
  ToStreaming();
  PutNext();
  PutNext();
  EXPECT_EQ(Kinds(machine_.Cancel(absl::CancelledError("client"))), "Abort FAILED");
  EXPECT_EQ(machine_.puts(), 2u);
  EXPECT_EQ(Kinds(machine_.OnSlabSent(kStart, 1, absl::OkStatus())), "");
  EXPECT_EQ(Kinds(machine_.OnSlabSent(kStart, 0, absl::CancelledError("closed"))), "RELEASE");
  EXPECT_FALSE(machine_.NextSlab(kStart).has_value());
}

TEST_F(HandoffSenderTest, SilenceBeyondTheLeaseIsTheEnd) {
  machine_.Start(kStart);
  EXPECT_EQ(Kinds(machine_.Tick(kStart + milliseconds(99))), "");
  EXPECT_EQ(Kinds(machine_.Tick(kStart + milliseconds(100))), "Heartbeat");
  auto heartbeat = Message();
  heartbeat.mutable_heartbeat();
  machine_.OnMessage(kStart + milliseconds(250), heartbeat);
  EXPECT_EQ(Kinds(machine_.Tick(kStart + milliseconds(550))), "Heartbeat");
  const auto actions = machine_.Tick(kStart + milliseconds(551));
  EXPECT_EQ(Kinds(actions), "Abort FAILED RELEASE");
  EXPECT_TRUE(RetryElsewhere(Failure(actions)));
  EXPECT_THAT(penstock::Message(Failure(actions)), testing::HasSubstr("301 ms"));
}

TEST_F(HandoffSenderTest, AnAbortSaysWhetherToTryElsewhereAndIsNotAnswered) {
  for (const bool retry : {true, false}) {
    HandoffSender machine(Args());
    machine.Start(kStart);
    auto abort = Message();
    abort.mutable_abort()->set_reason("no room");
    abort.mutable_abort()->set_retry_elsewhere(retry);
    const auto actions = machine.OnMessage(kStart, abort);
    EXPECT_EQ(Kinds(actions), "FAILED RELEASE");
    EXPECT_EQ(RetryElsewhere(Failure(actions)), retry);
    EXPECT_THAT(penstock::Message(Failure(actions)), testing::HasSubstr("no room"));
  }
}

TEST_F(HandoffSenderTest, AFullQueueArrivesAsWhatItIs) {
  HandoffSender machine(Args());
  machine.Start(kStart);
  auto abort = Message();
  SetAbort(ResourceExhausted("64 requests wait"), abort.mutable_abort());
  const auto actions = machine.OnMessage(kStart, abort);
  EXPECT_TRUE(absl::IsResourceExhausted(Failure(actions))) << Failure(actions);
  EXPECT_THAT(penstock::Message(Failure(actions)), testing::HasSubstr("64 requests wait"));
}

TEST_F(HandoffSenderTest, CommittedBeforeCommitIsDoubt) {
  ToStreaming();
  const auto actions = machine_.OnMessage(kStart, Committed());
  EXPECT_EQ(Kinds(actions), "Abort FAILED RELEASE");
  EXPECT_TRUE(absl::IsDataLoss(Failure(actions)));
}

TEST_F(HandoffSenderTest, CountsLayersThatLeftBeforeTheLastWasComputed) {
  machine_.Start(kStart);
  machine_.OnMessage(kStart, Credit());
  machine_.OnLayersReady(kStart, {0, 4, 0, 2});  // A first step.
  machine_.OnMessage(kStart, Opened());
  while (const auto slab = machine_.NextSlab(kStart)) {
    machine_.OnSlabHanded(slab->sequence);
    machine_.OnSlabSent(kStart, slab->sequence, absl::OkStatus());
  }
  machine_.OnLayersReady(kStart, {0, 3, 2, 3});  // The last step, but for its last layer.
  PutNext();
  EXPECT_EQ(machine_.layers_overlapped(), 0u);
  machine_.OnLayersReady(kStart, {3, 4, 2, 3});
  EXPECT_EQ(machine_.layers_overlapped(), 3u);
  PutNext();
  EXPECT_EQ(machine_.layers_overlapped(), 3u);
}

TEST_F(HandoffSenderTest, ASmallSlabWaitsForTheWireAndForItsNeighbour) {
  auto args = Args();
  args.slabs.min = kLayout.LayerBytes() * 4;
  HandoffSender machine(args);
  machine.Start(kStart);
  machine.OnMessage(kStart, Credit());
  machine.OnLayersReady(kStart, {0, 1, 0, 3});
  machine.OnMessage(kStart, Opened());
  EXPECT_EQ(RangeOf(machine.NextSlab(kStart).value()), (KvRange{0, 1, 0, 3}));  // It was idle.
  machine.OnLayersReady(kStart, {1, 2, 0, 3});
  EXPECT_FALSE(machine.NextSlab(kStart).has_value());
  machine.OnLayersReady(kStart, {2, 3, 0, 3});
  EXPECT_EQ(RangeOf(machine.NextSlab(kStart).value()), (KvRange{1, 3, 0, 3}));
}

TEST_F(HandoffSenderTest, MistakesOfTheEngineAreSeen) {
  machine_.Start(kStart);
  machine_.OnLayersReady(kStart, {0, 2, 0, 3});
  EXPECT_DEATH(machine_.OnLayersReady(kStart, {1, 3, 0, 3}), "Overlaps");
  EXPECT_DEATH(machine_.OnLayersReady(kStart, {2, 5, 0, 3}), "Contains");
  EXPECT_DEATH(machine_.OnFinish(kStart, {}), "complete");
}

// A sender of a named prompt, with a credit that holds `held` of its three blocks.
HandoffSender::Actions CreditHolding(HandoffSender& machine, uint32_t held) {
  machine.Start(kStart);
  auto credit = Credit();
  credit.mutable_credit()->set_held_blocks(held);
  return machine.OnMessage(kStart, credit);
}

TEST_F(HandoffSenderTest, WhatThePeerHoldsIsNotSent) {
  auto args = Args();
  args.prompt_id = std::string(16, 'p');
  HandoffSender machine(args);
  // Announced before the credit, and after it.
  machine.OnLayersReady(kStart, {0, 2, 0, 3});
  EXPECT_EQ(Kinds(CreditHolding(machine, 2)), "credited OpenLane Open");
  machine.OnLayersReady(kStart, {2, 4, 0, 3});
  machine.OnMessage(kStart, Opened());
  const auto slab = machine.NextSlab(kStart);
  ASSERT_TRUE(slab.has_value());
  EXPECT_EQ(RangeOf(*slab), (KvRange{0, 4, 2, 3}));
  machine.OnSlabPacked(0, 1000);
  EXPECT_EQ(Kinds(machine.OnSlabHanded(0)), "streaming");
  machine.OnSlabSent(kStart, 0, absl::OkStatus());
  EXPECT_FALSE(machine.NextSlab(kStart).has_value());
  EXPECT_EQ(Kinds(machine.OnFinish(kStart, {})), "landed Commit");
  EXPECT_EQ(machine.kv_bytes(), kLayout.PayloadBytes());
}

TEST_F(HandoffSenderTest, APeerThatHoldsWhatItCannotIsNotBelieved) {
  HandoffSender nameless(Args());
  EXPECT_TRUE(absl::IsDataLoss(Failure(CreditHolding(nameless, 1))));
  auto args = Args();
  args.prompt_id = std::string(16, 'p');
  HandoffSender named(args);
  EXPECT_TRUE(absl::IsDataLoss(Failure(CreditHolding(named, 3))));
}

// Token 40 sees 20 tokens: block 0 is neither announced nor sent, with or without a name.
TEST_F(HandoffSenderTest, WhatTheWindowHasPassedIsNotSent) {
  auto args = Args();
  args.format.layout.window = 20;
  HandoffSender machine(args);
  machine.OnLayersReady(kStart, {0, 4, 1, 3});
  EXPECT_EQ(Kinds(CreditHolding(machine, 1)), "credited OpenLane Open");
  machine.OnMessage(kStart, Opened());
  uint64_t cells = 0;
  while (const auto slab = machine.NextSlab(kStart)) {
    EXPECT_GE(slab->first_block, 1u);
    cells += RangeOf(*slab).cells();
    machine.OnSlabPacked(slab->sequence, 1000);
    machine.OnSlabHanded(slab->sequence);
    machine.OnSlabSent(kStart, slab->sequence, absl::OkStatus());
  }
  EXPECT_EQ(cells, 8u);
  EXPECT_EQ(Kinds(machine.OnFinish(kStart, {})), "landed Commit");
  HandoffSender other(args);
  EXPECT_TRUE(absl::IsDataLoss(Failure(CreditHolding(other, 0))));
}

}  // namespace
}  // namespace penstock
