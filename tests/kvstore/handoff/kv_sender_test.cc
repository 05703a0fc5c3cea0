// Sender and receiver together, over the loopback wire, with real threads.
#include "kvstore/handoff/kv_sender.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "kvstore/handoff/handoff_slabs.h"
#include "tests/kvstore/handoff/handoff_pair.h"

namespace penstock {
namespace {

using KvSenderTest = HandoffPair;
constexpr KvLayout kLayout = kPairLayout;

TEST_F(KvSenderTest, HandsOverWholeAndPartialBlocksInAnyChunks) {
  uint64_t session = 1;
  for (const uint32_t tokens : {1u, 15u, 16u, 17u, 100u, 700u}) {
    for (const uint32_t chunk : {7u, 16u, 64u, 1000u}) {
      Handoff& handoff = NewHandoff({session++, 0, 99}, tokens);
      ASSERT_TRUE(Expect(handoff, 2).ok());
      Start(handoff);
      Compute(handoff, chunk);
      ReceiveResult& received = handoff.received.Wait();
      ASSERT_TRUE(received.status.ok()) << received.status;
      EXPECT_TRUE(KvIsRight(target_->view(), received.kv.blocks, handoff.key.session));
      EXPECT_EQ(received.kv.blocks.size(), static_cast<size_t>(kLayout.BlocksFor(tokens)));
      EXPECT_EQ(received.kv.credit.blocks(), 2);
      EXPECT_EQ(received.kv.tokens, tokens);
      ASSERT_EQ(received.kv.first.size(), 1u);
      EXPECT_EQ(received.kv.first[0].token(), 42u);
      const SendResult& sent = handoff.sent.Wait();
      ASSERT_TRUE(sent.status.ok()) << sent.status;
      EXPECT_EQ(sent.stats.kv_bytes, kLayout.BlocksFor(tokens) * kLayout.PayloadBytes());
      EXPECT_EQ(sent.stats.transport, "loopback");
      EXPECT_LE(sent.stats.layers_overlapped, 6u);
      received.kv = {};  // The next handoff needs the blocks.
      handoff.blocks.clear();
    }
  }
  ExpectAllFree();
}

TEST_F(KvSenderTest, CountsALayerAsOverlappedOnlyWhenItLeftBeforeTheLastWasComputed) {
  Awaited<bool> streaming;
  Build({.on_step =
             [&](std::string_view step) {
               if (step == "streaming") streaming.Set(true);
             }},
        {});
  Handoff& handoff = NewHandoff({1, 0, 1}, 32);
  ASSERT_TRUE(Expect(handoff).ok());
  Start(handoff);
  auto credit = source_->Reserve(2);
  std::vector<BlockRef> blocks = credit->Take(2);
  const auto send = [&](int32_t first, int32_t last) {
    sender_->SendLayers(handoff.key, {first, last, 0, 32, blocks});
  };
  send(0, 4);
  streaming.Wait();  // Four layers of two blocks are one slab, and the wire was idle.
  send(4, 6);
  sender_->Finish(handoff.key, {v1::TokenOut()});
  const SendResult& sent = handoff.sent.Wait();
  ASSERT_TRUE(sent.status.ok()) << sent.status;
  EXPECT_EQ(sent.stats.layers, 6u);
  EXPECT_EQ(sent.stats.layers_overlapped, 4u);
  EXPECT_GE(sent.stats.exposed, Duration::zero());
  EXPECT_GT(sent.stats.first_slab, Duration::zero());
  handoff.received.Wait();
}

TEST_F(KvSenderTest, ComputesToTheEndWithoutTheDecodeWorker) {
  Handoff& handoff = NewHandoff({1, 0, 1}, 300);
  Start(handoff);
  Compute(handoff, 64);  // No decode session, no credit.
  EXPECT_FALSE(handoff.sent.ready());
  const std::vector<KvHeld> held = sender_->held();
  ASSERT_EQ(held.size(), 1u);
  EXPECT_EQ(held[0].blocks, kLayout.BlocksFor(300));
  ASSERT_TRUE(Expect(handoff).ok());
  const SendResult& sent = handoff.sent.Wait();
  ASSERT_TRUE(sent.status.ok()) << sent.status;
  // Rows that waited together are sent together.
  EXPECT_EQ(sent.stats.slabs, 1u);
  EXPECT_TRUE(KvIsRight(target_->view(), handoff.received.Wait().kv.blocks, 1));
}

TEST_F(KvSenderTest, ManyAtOnceWithTooFewTargetBlocksWaitInLine) {
  std::vector<Handoff*> handoffs;
  for (uint64_t i = 0; i < 24; ++i) {
    const auto tokens = static_cast<uint32_t>(200 + 13 * i);
    handoffs.push_back(&NewHandoff({i, 0, i}, tokens));
  }
  std::vector<std::jthread> engines;
  for (size_t e = 0; e < 3; ++e) {
    engines.emplace_back([&, e] {
      for (size_t i = e; i < handoffs.size(); i += 3) {
        ASSERT_TRUE(Expect(*handoffs[i]).ok());
        Start(*handoffs[i]);
        Compute(*handoffs[i], 48);
      }
    });
  }
  // In whatever order they come: each holds blocks that another waits for.
  std::vector<bool> seen(handoffs.size(), false);
  for (size_t left = handoffs.size(); left > 0;) {
    for (size_t i = 0; i < handoffs.size(); ++i) {
      if (seen[i] || !handoffs[i]->received.ready()) continue;
      ReceiveResult& received = handoffs[i]->received.Wait();
      ASSERT_TRUE(received.status.ok()) << received.status;
      EXPECT_TRUE(KvIsRight(target_->view(), received.kv.blocks, handoffs[i]->key.session));
      received.kv = ReceivedKv();
      receiver_->OnBlocksFreed();
      EXPECT_TRUE(handoffs[i]->sent.Wait().status.ok());
      seen[i] = true;
      --left;
    }
    std::this_thread::yield();
  }
  engines.clear();
  ExpectAllFree();
}

TEST_F(KvSenderTest, SmallStagingOnEitherSideOnlySlowsDown) {
  Build({.slabs = {.min = 4096, .max = 65536}, .staging_bytes = 65536}, {.staging_bytes = 65536});
  Handoff* handoffs[3];
  for (uint64_t i = 0; i < 3; ++i) handoffs[i] = &NewHandoff({i, 0, i}, 300);
  for (Handoff* handoff : handoffs) {
    ASSERT_TRUE(Expect(*handoff).ok());
    Start(*handoff);
    Compute(*handoff, 64);
  }
  for (Handoff* handoff : handoffs) {
    ReceiveResult& received = handoff->received.Wait();
    ASSERT_TRUE(received.status.ok()) << received.status;
    EXPECT_TRUE(KvIsRight(target_->view(), received.kv.blocks, handoff->key.session));
  }
}

TEST_F(KvSenderTest, MismatchesAreNamedAndFinal) {
  KvLayout other = kLayout;
  other.head_dim = 64;
  Build({}, {}, other);
  Handoff& handoff = NewHandoff({1, 0, 1}, 30);
  ASSERT_TRUE(Expect(handoff).ok());
  Start(handoff);
  const absl::Status sent = handoff.sent.Wait().status;
  EXPECT_FALSE(RetryElsewhere(sent));
  EXPECT_THAT(Message(sent), testing::HasSubstr(fmt::format("{:016x}", kLayout.Fingerprint())));
  EXPECT_THAT(Message(sent), testing::HasSubstr(fmt::format("{:016x}", other.Fingerprint())));
  EXPECT_FALSE(RetryElsewhere(handoff.received.Wait().status));

  Build({}, {}, kLayout, 0x77);
  Handoff& second = NewHandoff({2, 0, 1}, 30);
  ASSERT_TRUE(Expect(second).ok());
  Start(second);
  EXPECT_THAT(Message(second.sent.Wait().status), testing::HasSubstr("0000000000000077"));
  EXPECT_FALSE(RetryElsewhere(second.received.Wait().status));
  ExpectAllFree();
}

TEST_F(KvSenderTest, BrokenLanesAreOpenedAgain) {
  hub_.SetDelay(std::chrono::minutes(1));  // Nothing lands on the lane that breaks.
  Handoff& handoff = NewHandoff({1, 0, 1}, 400);
  ASSERT_TRUE(Expect(handoff).ok());
  Start(handoff);
  Compute(handoff, 100);
  while (receiver_->load().staging_used == 0) std::this_thread::yield();
  hub_.SetDelay({});
  hub_.BreakLanes(target_wire_->address());
  ASSERT_TRUE(handoff.sent.Wait().status.ok()) << handoff.sent.Wait().status;
  EXPECT_TRUE(KvIsRight(target_->view(), handoff.received.Wait().kv.blocks, 1));
}

TEST_F(KvSenderTest, AnUnreachablePeerEndsBothSides) {
  hub_.SetReachable(target_wire_->address(), false);
  Handoff& handoff = NewHandoff({1, 0, 1}, 400);
  ASSERT_TRUE(Expect(handoff).ok());
  Start(handoff);
  Compute(handoff, 100);
  EXPECT_TRUE(RetryElsewhere(handoff.sent.Wait().status)) << handoff.sent.Wait().status;
  EXPECT_TRUE(RetryElsewhere(handoff.received.Wait().status));
  ExpectAllFree();
}

TEST_F(KvSenderTest, PutsThatNeverEndDoNotHoldPagesAfterTheEnd) {
  Build({.put_timeout = std::chrono::hours(1)}, {});
  Handoff& handoff = NewHandoff({1, 0, 1}, 400);
  hub_.SetDelay(std::chrono::hours(1));
  ASSERT_TRUE(Expect(handoff).ok());
  Start(handoff);
  Compute(handoff, 100);
  while (receiver_->load().staging_used == 0) std::this_thread::yield();
  sender_->OnControlClosed(handoff.key, absl::UnavailableError("gone"));
  EXPECT_TRUE(RetryElsewhere(handoff.sent.Wait().status));
  EXPECT_FALSE(handoff.received.Wait().status.ok());
  ExpectAllFree();
  EXPECT_EQ(sender_->staging_used(), 0u);
}

TEST_F(KvSenderTest, CancelOnEitherSideEndsBoth) {
  for (const bool by_sender : {true, false}) {
    Handoff& handoff = NewHandoff({by_sender, 0, 1}, 100);
    ASSERT_TRUE(Expect(handoff).ok());
    Start(handoff);
    handoff.admitted.Wait();
    const absl::Status why = absl::CancelledError("the client went away");
    if (by_sender) {
      sender_->Cancel(handoff.key, why);
    } else {
      receiver_->Cancel(handoff.key, why);
    }
    EXPECT_FALSE(RetryElsewhere(handoff.sent.Wait().status));
    EXPECT_FALSE(RetryElsewhere(handoff.received.Wait().status));
    Compute(handoff, 50);  // The engine has not heard of it yet: nothing happens.
    ExpectAllFree();
  }
}

TEST_F(KvSenderTest, StopEndsWhatIsOpenAndAnswersEveryone) {
  Handoff& handoff = NewHandoff({1, 0, 1}, 100);
  Start(handoff);
  Compute(handoff, 50);
  sender_->Stop();
  EXPECT_TRUE(absl::IsUnavailable(handoff.sent.Wait().status));
  EXPECT_EQ(source_->blocks_used(), 0);
  EXPECT_TRUE(absl::IsUnavailable(sender_->Start({.key = {2, 0, 1}, .tokens = 1})));
}

TEST_F(KvSenderTest, StepsAreReportedInOrderOnBothSides) {
  std::mutex mutex;
  std::vector<std::string> sender_steps, receiver_steps;
  Build({.on_step =
             [&](std::string_view step) {
               std::lock_guard lock(mutex);
               sender_steps.emplace_back(step);
             }},
        {.on_step = [&](std::string_view step) {
          std::lock_guard lock(mutex);
          receiver_steps.emplace_back(step);
        }});
  Handoff& handoff = NewHandoff({1, 0, 1}, 100);
  ASSERT_TRUE(Expect(handoff).ok());
  Start(handoff);
  Compute(handoff, 50);
  EXPECT_TRUE(handoff.sent.Wait().status.ok());
  handoff.received.Wait().kv = ReceivedKv();
  TearDown();
  const auto all = testing::ElementsAre("offered", "credited", "streaming", "landed", "committed");
  EXPECT_THAT(sender_steps, all);
  EXPECT_THAT(receiver_steps, all);
}

// Exact codecs on the wire: the same bits arrive, NaN payloads included, in fewer bytes.
TEST_F(KvSenderTest, EncodedSlabsArriveBitByBit) {
  for (const KvCodec codec : {KvCodec::kLx16, KvCodec::kLxr}) {
    std::mutex mutex;
    uint64_t raw_bytes = 0, wire_bytes = 0;
    const auto write = [&](const SlabWrite& slab, const std::function<void()>& written) {
      {
        std::lock_guard lock(mutex);
        raw_bytes += slab.header.raw_bytes;
        wire_bytes += slab.header.payload_bytes;
      }
      ScatterSlab(target_->view(), slab.header, slab.blocks, slab.raw);
      written();
    };
    Build({.codec = {codec}}, {.writer = write});
    Handoff& handoff = NewHandoff({1, 0, 1}, 700);
    ASSERT_TRUE(Expect(handoff).ok());
    Start(handoff);
    auto credit = source_->Reserve(kLayout.BlocksFor(700));
    std::vector<BlockRef> blocks = credit->Take(credit->blocks());
    std::mt19937_64 engine(7);
    std::normal_distribution<float> normal;
    for (const BlockRef& block : blocks) {
      auto* values = reinterpret_cast<Bf16*>(source_->view().Block(block.id()));
      for (size_t i = 0; i < kLayout.PayloadBytes() / 2; ++i) values[i] = ToBf16(normal(engine));
      values[engine() % 1000].bits = static_cast<uint16_t>(0x7f81 + engine() % 100);  // NaN
    }
    sender_->SendLayers(handoff.key, {0, kLayout.layers, 0, 700, blocks});
    sender_->Finish(handoff.key, {v1::TokenOut()});
    ReceiveResult& received = handoff.received.Wait();
    ASSERT_TRUE(received.status.ok()) << received.status;
    for (size_t b = 0; b < blocks.size(); ++b) {
      EXPECT_EQ(
          std::memcmp(source_->view().Block(blocks[b].id()),
                      target_->view().Block(received.kv.blocks[b].id()), kLayout.PayloadBytes()),
          0)
          << b;
    }
    EXPECT_TRUE(handoff.sent.Wait().status.ok());
    EXPECT_EQ(raw_bytes, blocks.size() * kLayout.PayloadBytes());
    EXPECT_LT(wire_bytes, raw_bytes * 77 / 100);
    EXPECT_EQ(handoff.sent.Wait().stats.kv_bytes, raw_bytes);
    EXPECT_EQ(handoff.sent.Wait().stats.wire_bytes, wire_bytes);
    received.kv = {};
    blocks.clear();
    ExpectAllFree();
  }
}

// Raw slabs measure the link; what then is quickest by the rates given is used. The KV is exact.
TEST_F(KvSenderTest, TheCodecIsChosenOnceTheLinkIsKnown) {
  std::mutex mutex;
  std::vector<KvSlabReport> reports;
  const KvCodecSpec lx16{KvCodec::kLx16};
  Build({.choices =
             {{.spec = lx16, .encode_bytes_per_s = 1e15, .decode_bytes_per_s = 1e15, .ratio = 1.3}},
         .on_slab =
             [&](const KvSlabReport& report) {
               std::lock_guard lock(mutex);
               reports.push_back(report);
             }},
        {});
  const auto uses_lx16 = [&] {
    std::lock_guard lock(mutex);
    return std::any_of(reports.begin(), reports.end(), [&](const KvSlabReport& report) {
      return report.codec == lx16 && report.predicted > Duration::zero();
    });
  };
  // Bursts whose ends were busy coding say little of the link, so a slow machine needs more of
  // them.
  for (uint64_t session = 1; session <= 3 || (session <= 60 && !uses_lx16()); ++session) {
    Handoff& handoff = NewHandoff({session, 0, 1}, 700);
    ASSERT_TRUE(Expect(handoff).ok());
    Start(handoff);
    Compute(handoff, 100);
    ReceiveResult& received = handoff.received.Wait();
    ASSERT_TRUE(received.status.ok()) << received.status;
    EXPECT_TRUE(KvIsRight(target_->view(), received.kv.blocks, session));
    EXPECT_TRUE(handoff.sent.Wait().status.ok());
    received.kv = {};  // The next handoff needs the blocks.
    handoff.blocks.clear();
  }
  EXPECT_TRUE(uses_lx16());
  std::lock_guard lock(mutex);
  ASSERT_GE(reports.size(), 3u);
  EXPECT_EQ(reports.front().codec, KvCodecSpec{});
  EXPECT_EQ(reports.front().predicted, Duration::zero());
}

// Lossy codecs go only where both sides of the request allow them; what arrives is what the codec
// makes of the pages, however they were cut into slabs.
TEST_F(KvSenderTest, LossySlabsGoWhereBothSidesAllowThem) {
  constexpr uint32_t kTokens = 700;
  const KvCodecSpec i8{KvCodec::kI8};
  for (const auto& [sent, taken] : {std::pair(true, true), {true, false}, {false, true}}) {
    Build({.codec = {KvCodec::kLxr}}, {});
    Handoff& handoff = NewHandoff({1, 0, 1}, kTokens);
    if (taken) handoff.takes_lossy = {i8};
    if (sent) handoff.sends_lossy = {i8};
    ASSERT_TRUE(Expect(handoff).ok());
    Start(handoff);
    auto credit = source_->Reserve(kLayout.BlocksFor(kTokens));
    std::vector<BlockRef> blocks = credit->Take(credit->blocks());
    const KvRun run = RunOf(kLayout, 0, static_cast<uint32_t>(blocks.size()), 0, kLayout.layers);
    std::vector<std::byte> wanted(run.RawBytes()), encoded(EncodedKvBound(run));
    std::mt19937_64 engine(7);
    std::normal_distribution<float> normal;
    for (size_t b = 0; b < blocks.size(); ++b) {
      auto* values = reinterpret_cast<Bf16*>(source_->view().Block(blocks[b].id()));
      for (size_t i = 0; i < kLayout.PayloadBytes() / 2; ++i) values[i] = ToBf16(normal(engine));
      std::memcpy(wanted.data() + b * kLayout.PayloadBytes(), values, kLayout.PayloadBytes());
    }
    const bool lossy = sent && taken;
    if (lossy) {
      const auto used = EncodeKv(i8, run, {}, wanted, encoded);
      ASSERT_TRUE(DecodeKv(i8, run, {}, std::span(encoded).first(*used), wanted).ok());
    }
    for (uint32_t token = 0; token < kTokens; token += 100) {
      sender_->SendLayers(handoff.key, {0, kLayout.layers, token, token + 100, blocks});
    }
    sender_->Finish(handoff.key, {v1::TokenOut()});
    ReceiveResult& received = handoff.received.Wait();
    ASSERT_TRUE(received.status.ok()) << received.status;
    for (size_t b = 0; b < blocks.size(); ++b) {
      EXPECT_EQ(
          std::memcmp(wanted.data() + b * kLayout.PayloadBytes(),
                      target_->view().Block(received.kv.blocks[b].id()), kLayout.PayloadBytes()),
          0)
          << b;
    }
    const SendResult& result = handoff.sent.Wait();
    ASSERT_TRUE(result.status.ok());
    const KvCodecSpec wire = lossy ? i8 : KvCodecSpec{KvCodec::kLxr};
    EXPECT_EQ(result.stats.codecs, std::vector<KvCodecSpec>{wire});
    received.kv = {};
    blocks.clear();
    ExpectAllFree();
  }
}

// Codecs that need a calibration are used only when both sides have the same one.
TEST(HandoffSlabTest, AnotherCalibrationMeansAnExactCodec) {
  for (const uint64_t id : {0u, 4u, 5u}) {
    HandoffSender sender({.key = {1, 0, 1},
                          .format = {.model_fingerprint = 1, .layout = kLayout},
                          .tokens = 16,
                          .timing = {},
                          .slabs = {},
                          .kv_calibration = 5});
    sender.Start({});
    v1::HandoffReceiverMessage message;
    SetSessionKey({1, 0, 1}, message.mutable_key());
    for (const char* name : {"lxr", "i8", "cgx2", "of the future"}) {
      message.mutable_credit()->add_codecs(name);
    }
    message.mutable_credit()->set_kv_calibration(id);
    sender.OnMessage({}, message);
    std::vector<KvCodecSpec> wanted = {{KvCodec::kLxr}, {KvCodec::kI8}};
    if (id == 5) wanted.push_back({KvCodec::kCgx, 2});
    EXPECT_EQ(sender.peer_codecs(), wanted) << id;
  }
}

// A peer that has not said that it takes a codec gets raw slabs.
TEST_F(KvSenderTest, CodecsThatThePeerDoesNotTakeAreNotUsed) {
  std::atomic<int> encoded = 0;
  const auto write = [&](const SlabWrite& slab, const std::function<void()>& written) {
    encoded += slab.header.codec == SlabCodec::kEncoded ? 1 : 0;
    ScatterSlab(target_->view(), slab.header, slab.blocks, slab.raw);
    written();
  };
  Build({.codec = {KvCodec::kLx16}}, {.codecs = {{KvCodec::kLxr}}, .writer = write});
  Handoff& handoff = NewHandoff({1, 0, 1}, 100);
  ASSERT_TRUE(Expect(handoff).ok());
  Start(handoff);
  Compute(handoff, 50);
  ReceiveResult& received = handoff.received.Wait();
  ASSERT_TRUE(received.status.ok()) << received.status;
  EXPECT_TRUE(KvIsRight(target_->view(), received.kv.blocks, 1));
  EXPECT_EQ(encoded, 0);
}

// A slab that a codec does not make smaller is sent raw.
TEST_F(KvSenderTest, SlabsThatDoNotShrinkGoRaw) {
  Build({.codec = {KvCodec::kLxr}}, {});
  Handoff& handoff = NewHandoff({1, 0, 1}, 100);
  ASSERT_TRUE(Expect(handoff).ok());
  Start(handoff);
  Compute(handoff, 50);
  ReceiveResult& received = handoff.received.Wait();
  ASSERT_TRUE(received.status.ok()) << received.status;
  EXPECT_TRUE(KvIsRight(target_->view(), received.kv.blocks, 1));
}

TEST(HandoffSlabTest, LossyAndDamagedSlabsAreRefused) {
  const SlabHeader header{.layers = 6, .blocks = 2, .raw_bytes = 2 * 6 * 2 * 2 * 16 * 32 * 2};
  const KvRun run = RunOfSlab(kLayout, header, 2);
  std::vector<std::byte> raw(run.RawBytes()), encoded(EncodedKvBound(run));
  const auto used = EncodeKv({KvCodec::kI8}, run, {}, raw, encoded);
  ASSERT_TRUE(used.ok());
  const std::vector<KvCodecSpec> exact = {{KvCodec::kLx16}, {KvCodec::kLxr}};
  const SlabDecoding how{.layout = kLayout, .allowed = exact, .sequence_blocks = 2};
  const absl::Status lossy = DecodeSlab(how, header, std::span(encoded).first(*used), raw);
  EXPECT_TRUE(absl::IsFailedPrecondition(lossy));
  EXPECT_THAT(Message(lossy), testing::HasSubstr("i8"));
  EXPECT_TRUE(absl::IsDataLoss(DecodeSlab(how, header, std::span(encoded).first(10), raw)));
}

TEST(HandoffClaims, AKeyHasOneClaimAtATime) {
  HandoffClaims::Claim kept;
  {
    HandoffClaims claims;
    auto first = claims.Take({1, 0, 1});
    ASSERT_TRUE(first.ok());
    EXPECT_TRUE(absl::IsAlreadyExists(claims.Take({1, 0, 1}).status()));
    EXPECT_TRUE(claims.Take({1, 0, 2}).ok());  // and is given back at once
    EXPECT_TRUE(claims.Take({1, 0, 2}).ok());
    kept = *std::move(first);
    EXPECT_FALSE(kept.empty());
    EXPECT_TRUE(absl::IsAlreadyExists(claims.Take({1, 0, 1}).status()));
    kept = HandoffClaims::Claim();
    kept = *claims.Take({1, 0, 1});
  }
  EXPECT_FALSE(kept.empty());  // outlives what gave it
}

TEST_F(KvSenderTest, StartSaysWhatIsWrong) {
  EXPECT_TRUE(absl::IsInvalidArgument(sender_->Start({.key = {1, 0, 1}, .tokens = 0})));
  Handoff& handoff = NewHandoff({1, 0, 1}, 1);
  Start(handoff);
  EXPECT_TRUE(absl::IsAlreadyExists(sender_->Start({.key = {1, 0, 1}, .tokens = 1})));
  sender_->Stop();
  EXPECT_TRUE(absl::IsUnavailable(handoff.sent.Wait().status));
}

}  // namespace
}  // namespace penstock
