#include "kvstore/handoff/handoff_receiver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

namespace penstock {
namespace {

using std::chrono::milliseconds;

constexpr KvLayout kLayout{.layers = 4, .kv_heads = 1, .head_dim = 8, .block_tokens = 16};
constexpr HandoffKey kKey{.session = 5, .epoch = 2, .nonce = 77};
constexpr TimePoint kStart{milliseconds(1000)};

std::string Kinds(const HandoffReceiver::Actions& actions) {
  std::string kinds;
  for (const auto& action : actions) {
    if (!kinds.empty()) kinds += ' ';
    if (const auto* send = std::get_if<HandoffReceiver::Send>(&action)) {
      const v1::HandoffReceiverMessage& m = send->message;
      EXPECT_EQ(HandoffKeyOf(m.key()), kKey);
      kinds += m.has_credit()      ? "Credit"
               : m.has_opened()    ? "Opened"
               : m.has_committed() ? "Committed"
               : m.has_abort()     ? "Abort"
                                   : "Heartbeat";
    } else if (const auto* reached = std::get_if<HandoffReceiver::Reached>(&action)) {
      kinds += HandoffStateName(reached->state);
    } else if (const auto* bind = std::get_if<HandoffReceiver::Bind>(&action)) {
      kinds += fmt::format("BIND{}", bind->blocks);
    } else {
      kinds += std::get_if<HandoffReceiver::Committed>(&action) ? "COMMITTED"
               : std::get_if<HandoffReceiver::Failed>(&action)  ? "FAILED"
                                                                : "RELEASE";
    }
  }
  return kinds;
}

const absl::Status& Failure(const HandoffReceiver::Actions& actions) {
  for (const auto& action : actions) {
    if (const auto* failed = std::get_if<HandoffReceiver::Failed>(&action)) return failed->status;
  }
  ADD_FAILURE() << "no failure in: " << Kinds(actions);
  static const absl::Status none;
  return none;
}

v1::HandoffSenderMessage Message(const HandoffKey& key = kKey) {
  v1::HandoffSenderMessage message;
  SetSessionKey(key, message.mutable_key());
  return message;
}
v1::HandoffSenderMessage Offer(uint32_t tokens = 40, const HandoffKey& key = kKey) {
  auto message = Message(key);
  message.mutable_offer()->set_model_fingerprint(9);
  message.mutable_offer()->set_layout_fingerprint(kLayout.Fingerprint());
  message.mutable_offer()->set_tokens(tokens);
  return message;
}
v1::HandoffSenderMessage Open() {
  auto message = Message();
  message.mutable_open();
  return message;
}
v1::HandoffSenderMessage Commit(const std::vector<SlabHeader>& slabs) {
  auto message = Message();
  uint64_t digest = kDigestStart;
  for (const SlabHeader& slab : slabs) digest = DigestSlab(digest, slab);
  message.mutable_commit()->set_slabs(static_cast<uint32_t>(slabs.size()));
  message.mutable_commit()->set_digest(digest);
  message.mutable_commit()->add_first()->set_token(8);
  return message;
}
// The rule that such a commit keeps.
constexpr FirstTokensRule kOneToken{.first_choice = 0, .choices = 1, .vocab = 9};

SlabHeader Slab(uint32_t sequence, const KvRange& range) {
  const auto bytes = static_cast<uint32_t>(range.cells() * kLayout.LayerBytes());
  return {.key = kKey,
          .sequence = sequence,
          .first_layer = static_cast<uint16_t>(range.first_layer),
          .layers = static_cast<uint16_t>(range.layers()),
          .first_block = range.first_block,
          .blocks = range.blocks(),
          .raw_bytes = bytes,
          .payload_bytes = bytes,
          .payload_crc = 100 + sequence};
}

class HandoffReceiverTest : public testing::Test {
 protected:
  static HandoffReceiver::Args Args() {
    return {.key = kKey,
            .format = {.model_fingerprint = 9, .layout = kLayout},
            .timing = {.lease = milliseconds(300), .offer_hold = milliseconds(200)},
            .wire_address = "here"};
  }
  void ToStreaming(const FirstTokensRule& first = kOneToken) {
    machine_->OnExpected(40, {}, {}, first);
    machine_->OnAdmitted(kStart);
    machine_->OnMessage(kStart, Offer());
    EXPECT_EQ(Kinds(machine_->OnMessage(kStart, Open())), "BIND3 streaming Opened");
  }
  HandoffReceiver::Actions LandAndWrite(const SlabHeader& slab) {
    const auto landing = machine_->OnSlabLanded(slab, true);
    EXPECT_TRUE(landing.write);
    EXPECT_EQ(Kinds(landing.actions), "");
    return machine_->OnSlabWritten(kStart, slab.sequence);
  }

  std::optional<HandoffReceiver> machine_{std::in_place, Args(), kStart};
  const SlabHeader first_ = Slab(0, {0, 2, 0, 3});
  const SlabHeader second_ = Slab(1, {2, 4, 0, 3});
};

TEST_F(HandoffReceiverTest, GoesThroughItsStatesInOrder) {
  EXPECT_EQ(Kinds(machine_->OnExpected(40, {}, {}, kOneToken)), "");
  EXPECT_EQ(Kinds(machine_->OnMessage(kStart, Offer())), "offered");
  const auto credit = machine_->OnAdmitted(kStart);
  EXPECT_EQ(Kinds(credit), "credited Credit");
  EXPECT_EQ(std::get<HandoffReceiver::Send>(credit[1]).message.credit().wire_address(), "here");
  EXPECT_EQ(Kinds(machine_->OnMessage(kStart, Open())), "BIND3 streaming Opened");
  EXPECT_EQ(Kinds(LandAndWrite(first_)), "");
  EXPECT_EQ(Kinds(LandAndWrite(second_)), "");
  const auto end = machine_->OnMessage(kStart, Commit({first_, second_}));
  EXPECT_EQ(Kinds(end), "landed Committed committed COMMITTED");
  EXPECT_EQ(std::get<HandoffReceiver::Committed>(end[3]).first[0].token(), 8u);
  EXPECT_FALSE(machine_->over(kStart));
  // Idempotent, until the stream ends.
  EXPECT_EQ(Kinds(machine_->OnMessage(kStart, Commit({first_, second_}))), "Committed");
  EXPECT_EQ(Kinds(machine_->OnPeerGone(absl::OkStatus())), "");
  EXPECT_TRUE(machine_->over(kStart));
}

TEST_F(HandoffReceiverTest, AnyOrderOfSlabsAndCommit) {
  ToStreaming();
  EXPECT_EQ(Kinds(LandAndWrite(second_)), "");
  EXPECT_EQ(Kinds(machine_->OnMessage(kStart, Commit({first_, second_}))), "");
  EXPECT_TRUE(machine_->OnSlabLanded(first_, true).write);
  // It has landed but is not in the pages yet.
  EXPECT_EQ(Kinds(machine_->Tick(kStart + milliseconds(1))), "");
  EXPECT_EQ(Kinds(machine_->OnSlabWritten(kStart, 0)), "landed Committed committed COMMITTED");
}

TEST_F(HandoffReceiverTest, OfferFirstOrDecodeCallFirst) {
  EXPECT_EQ(Kinds(machine_->OnMessage(kStart, Offer())), "offered");
  EXPECT_EQ(Kinds(machine_->OnExpected(40)), "");
  EXPECT_EQ(Kinds(machine_->OnAdmitted(kStart)), "credited Credit");
  HandoffReceiver other(Args(), kStart);
  other.OnExpected(40);
  EXPECT_EQ(Kinds(other.OnAdmitted(kStart)), "");
  EXPECT_EQ(Kinds(other.OnMessage(kStart, Offer())), "offered credited Credit");
}

TEST_F(HandoffReceiverTest, DuplicatesOfControlAreAnsweredAgain) {
  machine_->OnExpected(40);
  machine_->OnAdmitted(kStart);
  machine_->OnMessage(kStart, Offer());
  EXPECT_EQ(Kinds(machine_->OnMessage(kStart, Offer())), "Credit");
  machine_->OnMessage(kStart, Open());
  EXPECT_EQ(Kinds(machine_->OnMessage(kStart, Open())), "Opened");
}

TEST_F(HandoffReceiverTest, OtherKeysAreIgnoredAndRefused) {
  for (const HandoffKey other :
       {HandoffKey{4, 2, 77}, HandoffKey{5, 1, 77}, HandoffKey{5, 2, 78}}) {
    EXPECT_EQ(Kinds(machine_->OnMessage(kStart, Offer(40, other))), "");
  }
  ToStreaming();
  for (const HandoffKey other :
       {HandoffKey{4, 2, 77}, HandoffKey{5, 1, 77}, HandoffKey{5, 2, 78}}) {
    SlabHeader stale = first_;
    stale.key = other;
    EXPECT_TRUE(absl::IsFailedPrecondition(machine_->CheckSlab(stale)));
    EXPECT_FALSE(machine_->OnSlabLanded(stale, true).write);
  }
}

TEST_F(HandoffReceiverTest, SlabsAreRefusedOutsideStreamingAndOutsideTheirPlace) {
  EXPECT_FALSE(machine_->CheckSlab(first_).ok());
  ToStreaming();
  EXPECT_TRUE(machine_->CheckSlab(first_).ok());
  EXPECT_TRUE(absl::IsOutOfRange(machine_->CheckSlab(Slab(0, {0, 5, 0, 3}))));
  EXPECT_TRUE(absl::IsOutOfRange(machine_->CheckSlab(Slab(0, {0, 4, 0, 4}))));
  EXPECT_TRUE(absl::IsOutOfRange(machine_->CheckSlab(Slab(0, {2, 2, 0, 3}))));
  EXPECT_TRUE(absl::IsOutOfRange(machine_->CheckSlab(Slab(12, {0, 1, 0, 1}))));
  SlabHeader wrap = first_;
  wrap.first_block = 0xffffffffu;
  EXPECT_TRUE(absl::IsOutOfRange(machine_->CheckSlab(wrap)));
  SlabHeader shorter = first_;
  shorter.payload_bytes -= 1;
  EXPECT_TRUE(absl::IsInvalidArgument(machine_->CheckSlab(shorter)));
  SlabHeader longer = first_;
  longer.raw_bytes += 1;
  EXPECT_TRUE(absl::IsInvalidArgument(machine_->CheckSlab(longer)));
}

TEST_F(HandoffReceiverTest, DamageEndsItAndNothingIsWritten) {
  ToStreaming();
  const auto landing = machine_->OnSlabLanded(first_, false);
  EXPECT_FALSE(landing.write);
  EXPECT_EQ(Kinds(landing.actions), "Abort FAILED RELEASE");
  EXPECT_TRUE(absl::IsDataLoss(Failure(landing.actions)));
}

TEST_F(HandoffReceiverTest, TheSameSlabTwiceIsWrittenOnce) {
  ToStreaming();
  LandAndWrite(first_);
  const auto again = machine_->OnSlabLanded(first_, true);
  EXPECT_FALSE(again.write);
  EXPECT_EQ(Kinds(again.actions), "");
}

TEST_F(HandoffReceiverTest, ContradictingSlabsAreDoubt) {
  ToStreaming();
  LandAndWrite(first_);
  SlabHeader other = first_;
  other.payload_crc ^= 1;
  EXPECT_TRUE(absl::IsDataLoss(Failure(machine_->OnSlabLanded(other, true).actions)));

  machine_.emplace(Args(), kStart);
  ToStreaming();
  LandAndWrite(first_);
  const auto overlap = machine_->OnSlabLanded(Slab(1, {1, 3, 0, 1}), true);
  EXPECT_TRUE(absl::IsDataLoss(Failure(overlap.actions)));
}

TEST_F(HandoffReceiverTest, CommitMustMatchWhatIsHere) {
  ToStreaming();
  LandAndWrite(first_);  // Two layers are missing.
  EXPECT_TRUE(absl::IsDataLoss(Failure(machine_->OnMessage(kStart, Commit({first_})))));

  machine_.emplace(Args(), kStart);
  ToStreaming();
  LandAndWrite(first_);
  LandAndWrite(second_);
  SlabHeader other = second_;
  other.payload_crc ^= 1;  // Another digest.
  EXPECT_TRUE(absl::IsDataLoss(Failure(machine_->OnMessage(kStart, Commit({first_, other})))));

  machine_.emplace(Args(), kStart);
  ToStreaming();
  LandAndWrite(first_);
  LandAndWrite(second_);
  EXPECT_TRUE(absl::IsDataLoss(Failure(machine_->OnMessage(kStart, Commit({first_})))));
}

// The engine would take them as they are: as tokens of its model and choices of the session.
TEST_F(HandoffReceiverTest, CommitMustHaveTheFirstTokensThatWereAgreed) {
  constexpr uint32_t kVocab = 9;
  struct First {
    uint32_t choice, token;
  };
  const std::vector<std::vector<First>> wrong = {
      {},
      {{2, 8}},
      {{2, 8}, {3, 8}, {4, 8}},
      {{2, 8}, {2, 8}},
      {{3, 8}, {2, 8}},
      {{2, 8}, {4000000000u, 8}},
      {{2, 8}, {3, kVocab}},
      {{0xffffffff, 8}, {3, 8}},
  };
  const auto commit = [&](const std::vector<First>& tokens) {
    auto message = Commit({first_, second_});
    message.mutable_commit()->clear_first();
    for (const First& one : tokens) {
      v1::TokenOut& token = *message.mutable_commit()->add_first();
      token.set_choice(one.choice);
      token.set_token(one.token);
    }
    return message;
  };
  const auto end = [&](const std::vector<First>& tokens) {
    machine_.emplace(Args(), kStart);
    ToStreaming({.first_choice = 2, .choices = 2, .vocab = kVocab});
    LandAndWrite(first_);
    LandAndWrite(second_);
    return machine_->OnMessage(kStart, commit(tokens));
  };
  for (const auto& tokens : wrong) {
    const auto actions = end(tokens);
    EXPECT_EQ(Kinds(actions), "Abort FAILED RELEASE") << tokens.size();
    EXPECT_TRUE(RetryElsewhere(Failure(actions)));
  }
  EXPECT_EQ(Kinds(end({{2, 0}, {3, 8}})), "landed Committed committed COMMITTED");
}

TEST_F(HandoffReceiverTest, SlabsThatNeverComeEndItAfterALease) {
  ToStreaming();
  machine_->OnMessage(kStart, Commit({first_, second_}));
  const TimePoint later = kStart + milliseconds(301);
  auto heartbeat = Message();
  heartbeat.mutable_heartbeat();
  machine_->OnMessage(later, heartbeat);
  EXPECT_TRUE(absl::IsDataLoss(Failure(machine_->Tick(later))));
}

TEST_F(HandoffReceiverTest, PagesAreQuarantinedWhileAWriteIsUnderWay) {
  ToStreaming();
  EXPECT_TRUE(machine_->OnSlabLanded(first_, true).write);
  EXPECT_TRUE(machine_->OnSlabLanded(second_, true).write);
  EXPECT_EQ(Kinds(machine_->Cancel(absl::CancelledError("client"))), "Abort FAILED");
  EXPECT_FALSE(machine_->over(kStart));
  EXPECT_EQ(Kinds(machine_->OnSlabWritten(kStart, 1)), "");
  EXPECT_EQ(Kinds(machine_->OnSlabWritten(kStart, 0)), "RELEASE");
  EXPECT_TRUE(machine_->over(kStart));
}

TEST_F(HandoffReceiverTest, MismatchedFormatsAreNamedAndFinal) {
  auto model = Offer();
  model.mutable_offer()->set_model_fingerprint(0xabc);
  const absl::Status other_model = Failure(machine_->OnMessage(kStart, model));
  EXPECT_FALSE(RetryElsewhere(other_model));
  EXPECT_THAT(penstock::Message(other_model), testing::HasSubstr("0000000000000abc"));
  EXPECT_THAT(penstock::Message(other_model), testing::HasSubstr("0000000000000009"));

  machine_.emplace(Args(), kStart);
  auto layout = Offer();
  layout.mutable_offer()->set_layout_fingerprint(0xdef);
  const absl::Status other_layout = Failure(machine_->OnMessage(kStart, layout));
  EXPECT_FALSE(RetryElsewhere(other_layout));
  EXPECT_THAT(penstock::Message(other_layout), testing::HasSubstr("0000000000000def"));

  machine_.emplace(Args(), kStart);
  machine_->OnMessage(kStart, Offer(41));
  const absl::Status tokens = Failure(machine_->OnExpected(40));
  EXPECT_FALSE(RetryElsewhere(tokens));
  EXPECT_THAT(penstock::Message(tokens), testing::HasSubstr("41 tokens and the decode session 40"));
}

TEST_F(HandoffReceiverTest, AnOfferWithoutADecodeCallIsHeldForAWhile) {
  machine_->OnMessage(kStart, Offer());
  EXPECT_EQ(Kinds(machine_->Tick(kStart + milliseconds(200))), "Heartbeat");
  const auto actions = machine_->Tick(kStart + milliseconds(201));
  EXPECT_EQ(Kinds(actions), "Abort FAILED RELEASE");
  EXPECT_TRUE(RetryElsewhere(Failure(actions)));
}

TEST_F(HandoffReceiverTest, SilenceBeyondTheLeaseIsTheEnd) {
  ToStreaming();
  EXPECT_EQ(Kinds(machine_->Tick(kStart + milliseconds(300))), "Heartbeat");
  const auto actions = machine_->Tick(kStart + milliseconds(301));
  EXPECT_EQ(Kinds(actions), "Abort FAILED RELEASE");
  EXPECT_TRUE(RetryElsewhere(Failure(actions)));
  // One that nobody has offered yet has no peer that could be silent.
  HandoffReceiver waiting(Args(), kStart);
  waiting.OnExpected(40);
  EXPECT_EQ(Kinds(waiting.Tick(kStart + std::chrono::hours(1))), "");
}

TEST_F(HandoffReceiverTest, TheEndOfTheStreamBeforeCommittedIsAnAbort) {
  ToStreaming();
  const auto actions = machine_->OnPeerGone(absl::UnavailableError("broken"));
  EXPECT_EQ(Kinds(actions), "FAILED RELEASE");
  EXPECT_TRUE(RetryElsewhere(Failure(actions)));
  EXPECT_EQ(Kinds(machine_->OnMessage(kStart, Open())), "");
}

TEST_F(HandoffReceiverTest, MessagesOutOfTurnAreDoubt) {
  machine_->OnMessage(kStart, Offer());
  EXPECT_TRUE(absl::IsDataLoss(Failure(machine_->OnMessage(kStart, Open()))));
  machine_.emplace(Args(), kStart);
  machine_->OnMessage(kStart, Offer());
  EXPECT_TRUE(absl::IsDataLoss(Failure(machine_->OnMessage(kStart, Commit({})))));
}

v1::HandoffSenderMessage OfferOf(const std::string& prompt_id) {
  auto offer = Offer();
  offer.mutable_offer()->set_prompt_id(prompt_id);
  return offer;
}

TEST_F(HandoffReceiverTest, WhatIsHeldIsNotAwaited) {
  const std::string prompt(16, 'p');
  machine_->OnExpected(40, prompt, {}, kOneToken);
  machine_->OnMessage(kStart, OfferOf(prompt));
  const auto credit = machine_->OnAdmitted(kStart, 2);
  EXPECT_EQ(std::get<HandoffReceiver::Send>(credit[1]).message.credit().held_blocks(), 2u);
  EXPECT_EQ(Kinds(machine_->OnMessage(kStart, Open())), "BIND1 streaming Opened");
  const SlabHeader rest = Slab(0, {0, 4, 2, 3});
  EXPECT_EQ(Kinds(LandAndWrite(rest)), "");
  EXPECT_EQ(Kinds(machine_->OnMessage(kStart, Commit({rest}))),
            "landed Committed committed COMMITTED");
}

// Others read what is held: nothing may be written there.
TEST_F(HandoffReceiverTest, ASlabForAHeldBlockIsRefused) {
  const std::string prompt(16, 'p');
  machine_->OnExpected(40, prompt);
  machine_->OnMessage(kStart, OfferOf(prompt));
  machine_->OnAdmitted(kStart, 2);
  machine_->OnMessage(kStart, Open());
  const auto landing = machine_->OnSlabLanded(Slab(0, {0, 1, 1, 3}), true);
  EXPECT_FALSE(landing.write);
  EXPECT_TRUE(absl::IsDataLoss(Failure(landing.actions)));
}

TEST_F(HandoffReceiverTest, AnOfferOfAnotherPromptIsRefusedInEitherOrder) {
  machine_->OnExpected(40, std::string(16, 'p'));
  EXPECT_TRUE(absl::IsFailedPrecondition(
      Failure(machine_->OnMessage(kStart, OfferOf(std::string(16, 'q'))))));
  HandoffReceiver other(Args(), kStart);
  other.OnMessage(kStart, OfferOf(std::string(16, 'q')));
  EXPECT_TRUE(absl::IsFailedPrecondition(Failure(other.OnExpected(40, std::string(16, 'p')))));
}

// Token 40 sees 20 tokens, so block 0 does not come, and the two workers must agree on that.
TEST_F(HandoffReceiverTest, WhatTheWindowHasPassedIsNotAwaited) {
  HandoffReceiver::Args args = Args();
  args.format.layout.window = 20;
  auto offer = Offer();
  machine_.emplace(args, kStart);
  EXPECT_TRUE(absl::IsFailedPrecondition(Failure(machine_->OnMessage(kStart, offer))));
  offer.mutable_offer()->set_layout_fingerprint(args.format.layout.Fingerprint());
  machine_.emplace(args, kStart);
  machine_->OnExpected(40, {}, {}, kOneToken);
  machine_->OnMessage(kStart, offer);
  const auto credit = machine_->OnAdmitted(kStart, 1);
  EXPECT_EQ(std::get<HandoffReceiver::Send>(credit[1]).message.credit().held_blocks(), 1u);
  EXPECT_EQ(Kinds(machine_->OnMessage(kStart, Open())), "BIND2 streaming Opened");
  EXPECT_TRUE(absl::IsDataLoss(
      Failure(HandoffReceiver(*machine_).OnSlabLanded(Slab(0, {0, 4, 0, 3}), true).actions)));
  const SlabHeader rest = Slab(0, {0, 4, 1, 3});
  EXPECT_EQ(Kinds(LandAndWrite(rest)), "");
  EXPECT_EQ(Kinds(machine_->OnMessage(kStart, Commit({rest}))),
            "landed Committed committed COMMITTED");
}

}  // namespace
}  // namespace penstock
