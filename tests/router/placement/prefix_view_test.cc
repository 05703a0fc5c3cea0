#include "router/placement/prefix_view.h"

#include <gtest/gtest.h>

#include "tests/router/index/block_tree.h"

namespace penstock {
namespace {

using namespace std::chrono_literals;

class PrefixViewTest : public ::testing::Test {
 protected:
  static std::string Bytes(std::span<const BlockId> ids) {
    return {reinterpret_cast<const char*>(ids.data()), ids.size_bytes()};
  }
  static v1::BlockEvents Batch(uint64_t sequence) {
    v1::BlockEvents batch;
    batch.set_sequence(sequence);
    return batch;
  }
  static void AddStored(v1::BlockEvents& batch, std::span<const BlockId> ids,
                        v1::KvTier tier = v1::DEVICE) {
    v1::BlocksStored& stored = *batch.add_events()->mutable_stored();
    stored.set_ids(Bytes(ids));
    stored.set_tier(tier);
  }
  CachedPrefix Cached(uint32_t worker) {
    PrefixMatches matches;
    view_.Find(chain_, matches);
    return view_.CachedOn(worker, matches, /*prompt_tokens=*/20 * 16, 16);
  }

  ManualClock clock_;
  PrefixView view_{clock_};
  BlockTree tree_{1};
  const std::vector<BlockId> chain_ = tree_.Path(tree_.Grow(20));
};

TEST_F(PrefixViewTest, ASnapshotTakesThePlaceOfAllThatWasKnown) {
  const uint32_t worker = *view_.Join();
  view_.OnStreamStarted(worker);
  v1::BlockEvents batch = Batch(0);
  AddStored(batch, std::span(chain_).first(12));
  ASSERT_TRUE(view_.OnEvents(worker, batch).ok());
  EXPECT_EQ(Cached(worker).tokens, 12u * 16);
  v1::BlockEvents live = Batch(1);
  live.add_events()->mutable_removed()->set_ids(Bytes(std::span(chain_).subspan(8, 4)));
  v1::BlocksMoved& moved = *live.add_events()->mutable_moved();
  moved.set_ids(Bytes(std::span(chain_).first(2)));
  moved.set_tier(v1::NVME);
  ASSERT_TRUE(view_.OnEvents(worker, live).ok());
  EXPECT_EQ(Cached(worker).tokens, 8u * 16);
  EXPECT_EQ(Cached(worker).nvme_tokens, 2u * 16);

  view_.OnStreamEnded(worker);
  EXPECT_EQ(Cached(worker).tokens, 8u * 16) << "kept until there is better";
  view_.OnStreamStarted(worker);
  v1::BlockEvents again = Batch(0);
  AddStored(again, std::span(chain_).first(3), v1::DRAM);
  ASSERT_TRUE(view_.OnEvents(worker, again).ok());
  EXPECT_EQ(Cached(worker).tokens, 3u * 16);
  EXPECT_EQ(Cached(worker).dram_tokens, 3u * 16);
}

// Its stream may begin before its state is heard, and the reverse.
TEST_F(PrefixViewTest, WhatAProcessHadBeforeItsRestartIsForgotten) {
  const uint32_t worker = *view_.Join();
  view_.OnRestarted(worker, 5);
  view_.OnStreamStarted(worker);
  v1::BlockEvents batch = Batch(0);
  batch.set_incarnation(5);
  AddStored(batch, std::span(chain_).first(12));
  ASSERT_TRUE(view_.OnEvents(worker, batch).ok());
  view_.Expect(worker, std::span(chain_).first(15));
  view_.OnRestarted(worker, 5);
  EXPECT_EQ(Cached(worker).tokens, 15u * 16) << "it is the same one";
  view_.OnStreamEnded(worker);
  view_.OnRestarted(worker, 6);
  EXPECT_EQ(Cached(worker).tokens, 0u);
  batch.set_incarnation(7);
  view_.OnStreamStarted(worker);
  ASSERT_TRUE(view_.OnEvents(worker, batch).ok());
  view_.OnRestarted(worker, 7);
  EXPECT_EQ(Cached(worker).tokens, 12u * 16) << "they are this one's";
}

TEST_F(PrefixViewTest, AGapOrABrokenBatchAsksForANewStream) {
  const uint32_t worker = *view_.Join();
  view_.OnStreamStarted(worker);
  ASSERT_TRUE(view_.OnEvents(worker, Batch(0)).ok());
  EXPECT_EQ(view_.OnEvents(worker, Batch(2)).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(view_.OnEvents(worker, Batch(0)).code(), absl::StatusCode::kOutOfRange) << "again";
  v1::BlockEvents broken = Batch(1);
  AddStored(broken, std::span(chain_).first(3));
  broken.add_events()->mutable_removed()->set_ids("seventeen bytes..");
  EXPECT_EQ(view_.OnEvents(worker, broken).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Cached(worker).tokens, 0u) << "nothing of it is applied";
  v1::BlockEvents nowhere = Batch(1);
  AddStored(nowhere, chain_, v1::KV_TIER_UNSPECIFIED);
  EXPECT_EQ(view_.OnEvents(worker, nowhere).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(view_.figures().gaps, 2u);
}

TEST_F(PrefixViewTest, TrustFallsWithSilence) {
  const uint32_t worker = *view_.Join();
  view_.OnStreamStarted(worker);
  v1::BlockEvents batch = Batch(0);
  AddStored(batch, chain_);
  ASSERT_TRUE(view_.OnEvents(worker, batch).ok());
  EXPECT_EQ(Cached(worker).hit_probability, 1);
  clock_.Advance(PrefixView::kFreshFor + PrefixView::kHalfLife);
  EXPECT_NEAR(Cached(worker).hit_probability, 0.5, 1e-9);
  EXPECT_EQ(view_.figures().stale_workers, 1u);
  ASSERT_TRUE(view_.OnEvents(worker, Batch(1)).ok());  // a heartbeat
  EXPECT_EQ(Cached(worker).hit_probability, 1);
}

TEST_F(PrefixViewTest, WhatWasSentIsExpectedUntilItsTimeIsOver) {
  const uint32_t worker = *view_.Join();
  view_.Expect(worker, chain_);
  EXPECT_EQ(Cached(worker).expected_tokens, 20u * 16);
  EXPECT_LT(Cached(worker).hit_probability, 1) << "it has not said anything";
  view_.OnStreamStarted(worker);
  view_.Sweep();
  EXPECT_EQ(Cached(worker).tokens, 20u * 16 - 1) << "the last token is always computed";
  clock_.Advance(PrefixView::kExpectFor);
  view_.Sweep();
  EXPECT_EQ(Cached(worker).tokens, 0u);
}

TEST_F(PrefixViewTest, AMissIsRememberedUnlessTheWorkerTellsItselfWhatWent) {
  const uint32_t silent = *view_.Join();
  const uint32_t live = *view_.Join();
  view_.Expect(silent, chain_);
  view_.OnStreamStarted(live);
  v1::BlockEvents batch = Batch(0);
  AddStored(batch, chain_);
  ASSERT_TRUE(view_.OnEvents(live, batch).ok());
  view_.OnMissing(silent, chain_, 5);
  view_.OnMissing(live, chain_, 5);
  EXPECT_EQ(view_.figures().missing, 15u);
  EXPECT_EQ(Cached(silent).tokens, 5u * 16);
  EXPECT_EQ(Cached(live).tokens, 20u * 16 - 1);
}

TEST_F(PrefixViewTest, ANumberIsGivenOutAgainEmpty) {
  const uint32_t worker = *view_.Join();
  view_.OnStreamStarted(worker);
  v1::BlockEvents batch = Batch(0);
  AddStored(batch, chain_);
  ASSERT_TRUE(view_.OnEvents(worker, batch).ok());
  view_.Leave(worker);
  EXPECT_EQ(view_.figures().blocks, 0u);
  EXPECT_EQ(*view_.Join(), worker);
  EXPECT_EQ(Cached(worker).tokens, 0u);
}

}  // namespace
}  // namespace penstock
