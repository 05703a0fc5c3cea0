#include "router/fleet/worker_table.h"

#include <gtest/gtest.h>

#include "tests/router/index/block_tree.h"

namespace penstock {
namespace {

using namespace std::chrono_literals;

class WorkerTableTest : public ::testing::Test {
 protected:
  static v1::WorkerState State(v1::WorkerState::Role role, uint64_t incarnation = 1) {
    v1::WorkerState state;
    state.set_worker_id("w");
    state.set_incarnation(incarnation);
    state.set_role(role);
    state.set_phase(v1::WorkerState::READY);
    state.set_block_tokens(16);
    state.set_max_model_len(1000);
    state.set_kv_blocks_total(100);
    return state;
  }
  void Join(const std::string& endpoint, const v1::WorkerState& state) {
    table_->Add(endpoint, nullptr);
    table_->OnWatchStarted(endpoint);
    table_->OnState(endpoint, state);
  }
  absl::StatusOr<PlacedPair> Place(uint32_t prompt_tokens = 100) {
    return table_->Place({.need = {.prompt_tokens = prompt_tokens, .answer_tokens = 10},
                          .on_decode_lost = [this](const absl::Status&) { ++lost_; }});
  }

  ManualClock clock_;
  std::shared_ptr<WorkerTable> table_ = std::make_shared<WorkerTable>(clock_, 3s);
  int lost_ = 0;
};

TEST_F(WorkerTableTest, IsReadyWithOneWorkerOfEachRole) {
  EXPECT_FALSE(table_->ready());
  Join("p:1", State(v1::WorkerState::PREFILL));
  EXPECT_FALSE(table_->ready());
  Join("d:1", State(v1::WorkerState::DECODE));
  EXPECT_TRUE(table_->ready());
  EXPECT_EQ(table_->max_model_len(), 1000u);
}

TEST_F(WorkerTableTest, DecodeWorkersServeAloneOnceAllPrefillWorkersAreGone) {
  v1::WorkerState decode = State(v1::WorkerState::DECODE);
  decode.set_local_prefill_max_tokens(128);
  Join("d:1", decode);
  EXPECT_FALSE(table_->ready()) << "prefill workers may be about to start";
  Join("p:1", State(v1::WorkerState::PREFILL));
  EXPECT_TRUE(table_->ready());
  table_->Remove("p:1");
  EXPECT_TRUE(table_->ready());
  EXPECT_EQ(table_->max_model_len(), 1000u);
  PlacementRequest request{.need = {.prompt_tokens = 500, .answer_tokens = 10}};
  EXPECT_FALSE(table_->Place(request).ok()) << "not asked for";
  request.need.may_skip_prefill = true;
  const auto placed = table_->Place(request);
  ASSERT_TRUE(placed.ok()) << placed.status();
  EXPECT_TRUE(placed->local_prefill);
  EXPECT_TRUE(placed->alone);
  EXPECT_EQ(table_->kv_methods(), std::nullopt) << "there is no pair, which may change";
}

TEST_F(WorkerTableTest, ARouterThatStartsWithoutPrefillWorkersWaitsForThem) {
  v1::WorkerState decode = State(v1::WorkerState::DECODE);
  decode.set_local_prefill_max_tokens(128);
  Join("d:1", decode);
  clock_.Advance(2900ms);
  table_->OnState("d:1", decode);
  EXPECT_FALSE(table_->ready());
  clock_.Advance(200ms);
  table_->OnState("d:1", decode);
  EXPECT_TRUE(table_->ready());
  decode.set_local_prefill_max_tokens(0);
  table_->OnState("d:1", decode);
  EXPECT_FALSE(table_->ready()) << "local prefill is turned off there";
}

v1::WorkerState WithCheckpoint(v1::WorkerState state, uint64_t checkpoint) {
  state.set_checkpoint_fingerprint(checkpoint);
  state.set_model_fingerprint(checkpoint);
  return state;
}

TEST_F(WorkerTableTest, WorkersOfAnotherModelAreRefused) {
  const v1::WorkerState prefill = State(v1::WorkerState::PREFILL);
  const v1::WorkerState decode = State(v1::WorkerState::DECODE);
  Join("p:1", WithCheckpoint(prefill, 7));
  Join("d:1", WithCheckpoint(decode, 7));
  Join("p:2", WithCheckpoint(prefill, 8));
  Join("d:2", WithCheckpoint(decode, 8));
  std::vector<PlacedPair> open;  // load alone would spread them
  for (int i = 0; i < 4; ++i) {
    open.push_back(*Place());
    EXPECT_EQ(open.back().prefill.life.first, "p:1");
    EXPECT_EQ(open.back().decode.life.first, "d:1");
  }
  EXPECT_EQ((table_->Counts()[{"decode", "refused"}]), 1);
  table_->OnState("d:1", WithCheckpoint(State(v1::WorkerState::DECODE, 2), 8));
  EXPECT_FALSE(table_->ready()) << "restarted with another model";
  EXPECT_EQ((table_->Counts()[{"decode", "refused"}]), 2);
  table_->OnWatchEnded("p:1", "gone");
  table_->OnState("d:2", WithCheckpoint(decode, 8));
  EXPECT_TRUE(table_->ready()) << "nobody serves the first model any more";
  EXPECT_EQ(Place()->prefill.life.first, "p:2");
}

TEST_F(WorkerTableTest, OneModelMayHaveSeveralArithmetics) {
  v1::WorkerState gpu = WithCheckpoint(State(v1::WorkerState::DECODE), 7);
  gpu.set_model_fingerprint(70);
  Join("p:1", WithCheckpoint(State(v1::WorkerState::PREFILL), 7));
  Join("d:1", WithCheckpoint(State(v1::WorkerState::DECODE), 7));
  Join("d:2", gpu);
  Join("d:3", State(v1::WorkerState::DECODE));  // an older worker
  EXPECT_EQ((table_->Counts()[{"decode", "ready"}]), 3);
}

// What was placed since the last state counts, so a burst between two states fills no queue too
// far.
TEST_F(WorkerTableTest, APrefillWorkersQueueIsFullWithWhatWasPlacedSince) {
  v1::WorkerState prefill = State(v1::WorkerState::PREFILL);
  prefill.set_running(3);
  prefill.set_max_waiting(5);
  Join("p:1", prefill);
  Join("d:1", State(v1::WorkerState::DECODE));
  std::vector<PlacedPair> open;
  for (int i = 0; i < 2; ++i) open.push_back(*Place());
  EXPECT_TRUE(absl::IsResourceExhausted(Place().status()));
  open.pop_back();
  EXPECT_TRUE(Place().ok());
}

TEST_F(WorkerTableTest, AStateOlderThanTheBoundCountsForNothing) {
  Join("p:1", State(v1::WorkerState::PREFILL));
  Join("d:1", State(v1::WorkerState::DECODE));
  clock_.Advance(3s);
  EXPECT_TRUE(table_->ready());
  clock_.Advance(1ms);
  EXPECT_FALSE(table_->ready());
  table_->OnState("p:1", State(v1::WorkerState::PREFILL));
  table_->OnState("d:1", State(v1::WorkerState::DECODE));
  EXPECT_TRUE(table_->ready());
}

TEST_F(WorkerTableTest, AWatchThatIsOpenedAnewHasToSaySomethingFirst) {
  Join("p:1", State(v1::WorkerState::PREFILL));
  Join("d:1", State(v1::WorkerState::DECODE));
  table_->OnWatchEnded("d:1", "broken");
  EXPECT_FALSE(table_->ready());
  table_->OnWatchStarted("d:1");
  EXPECT_FALSE(table_->ready()) << "what it said before is of another life";
  table_->OnState("d:1", State(v1::WorkerState::DECODE));
  EXPECT_TRUE(table_->ready());
}

TEST_F(WorkerTableTest, DrainingWorkersGetNothing) {
  Join("p:1", State(v1::WorkerState::PREFILL));
  v1::WorkerState draining = State(v1::WorkerState::DECODE);
  draining.set_phase(v1::WorkerState::DRAINING);
  Join("d:1", draining);
  EXPECT_EQ(Place().status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(WorkerTableTest, BookingsCountAtOnceAndSpreadRequests) {
  Join("p:1", State(v1::WorkerState::PREFILL));
  Join("p:2", State(v1::WorkerState::PREFILL));
  Join("d:1", State(v1::WorkerState::DECODE));
  Join("d:2", State(v1::WorkerState::DECODE));
  auto first = Place();
  auto second = Place();
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(first->prefill.life, second->prefill.life);
  EXPECT_NE(first->decode.life, second->decode.life);
}

TEST_F(WorkerTableTest, ABookingThatTheWorkerReportsItselfIsNotCountedTwice) {
  Join("p:1", State(v1::WorkerState::PREFILL));
  Join("p:2", State(v1::WorkerState::PREFILL));
  Join("d:1", State(v1::WorkerState::DECODE));
  auto first = Place(100);
  ASSERT_TRUE(first.ok());
  const std::string busy = first->prefill.life.first;
  const std::string idle = busy == "p:1" ? "p:2" : "p:1";
  v1::WorkerState reported = State(v1::WorkerState::PREFILL);
  reported.set_waiting_tokens(100);
  table_->OnState(busy, reported);
  v1::WorkerState other = State(v1::WorkerState::PREFILL);
  other.set_waiting_tokens(150);  // more than 100, less than 100 twice
  table_->OnState(idle, other);
  auto second = Place(1);
  EXPECT_EQ(second->prefill.life.first, busy);
}

TEST_F(WorkerTableTest, ABookingEndsWithItsOwner) {
  Join("p:1", State(v1::WorkerState::PREFILL));
  Join("p:2", State(v1::WorkerState::PREFILL));
  Join("d:1", State(v1::WorkerState::DECODE));
  v1::WorkerState loaded = State(v1::WorkerState::PREFILL);
  loaded.set_waiting_tokens(50);
  table_->OnState("p:2", loaded);
  {
    auto first = Place(100);
    EXPECT_EQ(first->prefill.life.first, "p:1");
    EXPECT_EQ(Place(1)->prefill.life.first, "p:2");
  }
  EXPECT_EQ(Place(1)->prefill.life.first, "p:1");
}

TEST_F(WorkerTableTest, BookingsOfADeadProcessDoNotBurdenTheNextOne) {
  Join("p:1", State(v1::WorkerState::PREFILL, 1));
  Join("d:1", State(v1::WorkerState::DECODE, 1));
  auto old = Place();
  ASSERT_TRUE(old.ok());
  table_->OnState("d:1", State(v1::WorkerState::DECODE, 2));
  old->decode.reservation.Release();  // of the incarnation before
  auto next = Place();
  ASSERT_TRUE(next.ok());
  EXPECT_EQ(next->decode.life.second, 2u);
}

// A worker that has turned is the same process, with what it has cached, and has nothing of what
// was placed on it before.
TEST_F(WorkerTableTest, BookingsOfAnEarlierRoleEndWithIt) {
  const auto state = [](v1::WorkerState::Role role, uint32_t epoch) {
    v1::WorkerState said = State(role);
    said.set_role_epoch(epoch);
    return said;
  };
  Join("p:1", state(v1::WorkerState::PREFILL, 1));
  Join("d:1", state(v1::WorkerState::DECODE, 1));
  Join("d:2", state(v1::WorkerState::DECODE, 1));
  auto first = Place(), second = Place();
  ASSERT_TRUE(first.ok() && second.ok());
  PlacedWorker& stale = first->decode.life.first == "d:1" ? first->decode : second->decode;
  EXPECT_EQ(stale.role_epoch, 1u);
  table_->OnState("d:1", state(v1::WorkerState::PREFILL, 2));
  EXPECT_EQ(Place()->decode.life.first, "d:2");
  table_->OnState("d:1", state(v1::WorkerState::DECODE, 3));
  // d:2 has reservations and d:1 has none.
  auto third = Place();
  ASSERT_TRUE(third.ok());
  EXPECT_EQ(third->decode.life.first, "d:1");
  EXPECT_EQ(third->decode.role_epoch, 3u);
  stale.reservation.Release();  // does not change the reservation of the new process
  int pictures_of_d1 = 0;
  for (const WorkerPicture& picture : table_->Pictures(8)) {
    if (picture.endpoint != "d:1") continue;
    ++pictures_of_d1;
    EXPECT_EQ(picture.requests, 1u);
  }
  EXPECT_EQ(pictures_of_d1, 1);
}

TEST_F(WorkerTableTest, TheLastWorkerOfARoleIsMissed) {
  v1::WorkerState other = State(v1::WorkerState::DECODE);
  other.set_worker_id("other");
  Join("p:1", State(v1::WorkerState::PREFILL));
  Join("d:1", other);
  EXPECT_EQ(table_->CheckOthers("d:1", v1::WorkerState::PREFILL).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(table_->CheckOthers("other", v1::WorkerState::DECODE).ok());
  EXPECT_EQ(table_->CheckOthers("nobody", v1::WorkerState::DECODE).code(),
            absl::StatusCode::kNotFound);
  v1::WorkerState draining = State(v1::WorkerState::DECODE);
  draining.set_phase(v1::WorkerState::DRAINING);
  Join("d:2", draining);
  EXPECT_FALSE(table_->CheckOthers("d:1", v1::WorkerState::PREFILL).ok());
  table_->OnState("d:2", State(v1::WorkerState::DECODE));
  EXPECT_TRUE(table_->CheckOthers("d:1", v1::WorkerState::PREFILL).ok());
}

TEST_F(WorkerTableTest, SaysHowTheRolesAreDoing) {
  Join("p:1", State(v1::WorkerState::PREFILL));
  Join("p:2", State(v1::WorkerState::PREFILL));
  v1::WorkerState full = State(v1::WorkerState::DECODE);
  full.set_kv_blocks_used(60);
  full.set_kv_blocks_reserved(30);
  Join("d:1", full);
  RoleSituation seen = table_->Roles({});
  EXPECT_EQ(seen.prefill.size(), 2u);
  EXPECT_EQ(seen.decode.size(), 1u);
  EXPECT_FALSE(seen.turning);
  EXPECT_NEAR(LoadOf(seen.decode), 1, 1e-9);  // 90 % of the memory
  EXPECT_EQ(LoadOf(seen.prefill), 0);
  v1::WorkerState queued = State(v1::WorkerState::PREFILL);
  queued.set_waiting_tokens(100'000);
  queued.set_turning_to(v1::WorkerState::DECODE);
  queued.set_role_epoch(2);
  table_->OnState("p:1", queued);
  const RoleSituation later = table_->Roles({.ttft_ms = 1000});
  EXPECT_GT(LoadOf(later.prefill), 1);
  EXPECT_GT(LoadOf(later.prefill), 1.9 * LoadOf(table_->Roles({.ttft_ms = 2000}).prefill));
  EXPECT_TRUE(later.turning);
  EXPECT_NE(later.changes, seen.changes);
}

TEST_F(WorkerTableTest, SilenceOnAnOpenWatchIsTellingToThoseWhoWait) {
  Join("p:1", State(v1::WorkerState::PREFILL));
  Join("d:1", State(v1::WorkerState::DECODE));
  auto pair = Place();
  clock_.Advance(2s);
  table_->OnState("p:1", State(v1::WorkerState::PREFILL));
  EXPECT_TRUE(table_->Sweep().empty());
  clock_.Advance(1001ms);
  EXPECT_EQ(table_->Sweep(), std::vector<std::string>{"d:1"});
  EXPECT_EQ(lost_, 1);
  (void)table_->Sweep();
  EXPECT_EQ(lost_, 1) << "told once";
}

TEST_F(WorkerTableTest, BookingsOutliveTheTable) {
  Join("p:1", State(v1::WorkerState::PREFILL));
  Join("d:1", State(v1::WorkerState::DECODE));
  auto pair = Place();
  table_->Remove("d:1");
  table_.reset();
  pair->prefill.reservation.Release();
  pair->decode.reservation.Release();
}

TEST_F(WorkerTableTest, APromptGoesWhereItsPrefixWasSent) {
  Join("p:1", State(v1::WorkerState::PREFILL));
  Join("p:2", State(v1::WorkerState::PREFILL));
  Join("d:1", State(v1::WorkerState::DECODE));
  BlockTree tree(1);
  const std::vector<BlockId> ids = tree.Path(tree.Grow(60));
  const auto place = [&](uint64_t random, uint32_t explain = 0) {
    return table_->Place({.need = {.prompt_tokens = 970, .answer_tokens = 1},
                          .ids = ids,
                          .explain = explain,
                          .random = random});
  };
  auto first = place(0);
  const std::string where = first->prefill.life.first;
  EXPECT_EQ(first->forecast->cached_tokens, 0u);
  EXPECT_EQ(first->explanation, nullptr);
  first->prefill.reservation.Release();
  for (uint64_t random = 0; random < 8; ++random) {
    auto next = place(random, 16);
    EXPECT_EQ(next->prefill.life.first, where);
    EXPECT_EQ(next->forecast->cached_tokens, 60u * 16);
    ASSERT_EQ(next->explanation->candidates_size(), 2);
    EXPECT_EQ(next->explanation->candidates(0).verdict(), "chosen");
    EXPECT_LT(next->explanation->candidates(0).cost_ms(),
              next->explanation->candidates(1).cost_ms());
  }
  // The worker had nothing of it after all.
  v1::FirstTokens computed;
  computed.set_computed_tokens(970);
  computed.set_compute_ms(50);
  auto last = place(0);
  table_->OnFirstTokens(*last->forecast, computed);
  last->prefill.reservation.Release();
  EXPECT_EQ(place(0)->forecast->cached_tokens, 0u);
}

TEST_F(WorkerTableTest, NobodyIsRefusedBecauseOfAGuess) {
  Join("p:1", State(v1::WorkerState::PREFILL));
  Join("d:1", State(v1::WorkerState::DECODE));
  const auto place = [&] {
    return table_->Place({.need = {.prompt_tokens = 900, .answer_tokens = 1, .ttft_limit_ms = 1}});
  };
  ASSERT_TRUE(place().ok());
  v1::FirstTokens first;
  first.set_computed_tokens(900);
  first.set_compute_ms(90);
  const auto forecast = place()->forecast;
  for (int i = 0; i < 10; ++i) table_->OnFirstTokens(*forecast, first);
  EXPECT_EQ(place().status().code(), absl::StatusCode::kResourceExhausted);
}

// Codecs that both workers of a pair support; cgx only with equal calibrations.
TEST_F(WorkerTableTest, LossyCodecsAreThoseOfAPair) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(table_->kv_methods(), std::nullopt);
  const auto with = [&](v1::WorkerState::Role role, const Names& codecs, uint64_t calibration) {
    v1::WorkerState state = State(role);
    for (const std::string& codec : codecs) state.add_lossy_codecs(codec);
    state.set_kv_calibration(calibration);
    return state;
  };
  Join("p:1", with(v1::WorkerState::PREFILL, {"i8", "cgx2", "kv2"}, 1));
  EXPECT_EQ(table_->kv_methods(), std::nullopt);
  Join("d:1", State(v1::WorkerState::DECODE));
  EXPECT_EQ(table_->kv_methods(), Names());
  Join("d:2", with(v1::WorkerState::DECODE, {"i8", "cgx2", "f8"}, 2));
  EXPECT_EQ(table_->kv_methods(), Names{"i8"});
  Join("d:3", with(v1::WorkerState::DECODE, {"cgx2"}, 1));
  EXPECT_EQ(table_->kv_methods(), (Names{"cgx2", "i8"}));
}

TEST_F(WorkerTableTest, EvictionsAreThoseOfAPair) {
  const auto with = [&](v1::WorkerState::Role role, std::vector<std::string> methods) {
    v1::WorkerState state = State(role);
    for (std::string& method : methods) state.add_kv_evictions(std::move(method));
    return state;
  };
  Join("p:1", with(v1::WorkerState::PREFILL, {}));
  Join("p:2", with(v1::WorkerState::PREFILL, {"snapkv", "tova"}));
  Join("d:1", with(v1::WorkerState::DECODE, {"tova"}));
  Join("d:2", with(v1::WorkerState::DECODE, {"snapkv", "streaming"}));
  EXPECT_EQ(table_->kv_methods(), (std::vector<std::string>{"snapkv", "tova"}));
  // Only workers that do it get such a prompt.
  const PlacementNeed need{
      .prompt_tokens = 500, .evicted_tokens = 400, .answer_tokens = 10, .kv_method = "snapkv"};
  for (int i = 0; i < 10; ++i) {
    const auto placed = table_->Place({.need = need, .random = static_cast<uint64_t>(i)});
    ASSERT_TRUE(placed.ok()) << placed.status();
    EXPECT_EQ(placed->prefill.life.first, "p:2");
    EXPECT_EQ(placed->decode.life.first, "d:2");
  }
}

// A prompt's blocks have other names on decode workers where its KV goes over lossily.
TEST_F(WorkerTableTest, LossyPromptsAreLookedUpUnderTheirOwnNames) {
  Join("p:1", State(v1::WorkerState::PREFILL));
  Join("d:1", State(v1::WorkerState::DECODE));
  const std::vector<uint32_t> tokens(160, 7);
  const std::vector<BlockId> exact = HashBlocks(RootBlockId({.provenance = ""}), tokens, 16);
  const std::vector<BlockId> lossy = HashBlocks(RootBlockId({.provenance = "wire i8"}), tokens, 16);
  const auto place = [&](const std::optional<std::vector<BlockId>>& decode_ids) {
    auto placed = table_->Place({.need = {.prompt_tokens = 160, .answer_tokens = 1},
                                 .ids = exact,
                                 .decode_ids = decode_ids});
    return placed->forecast;
  };
  EXPECT_EQ(place(lossy)->held_tokens, 0u);
  EXPECT_EQ(place(std::nullopt)->held_tokens, 0u) << "what is there is lossy";
  EXPECT_GT(place(lossy)->held_tokens, 0u);
  EXPECT_GT(place(std::nullopt)->held_tokens, 0u) << "expected from the placement before";
  EXPECT_GT(place(lossy)->cached_tokens, 0u) << "a prefill worker has exact KV only";
}

// ---------------------------------------------------------------- reading from others' stores

class PeerReadsTest : public WorkerTableTest {
 protected:
  static std::vector<BlockId> IdsOf(uint32_t prompt) {
    return HashBlocks(RootBlockId({}), std::vector<uint32_t>(800, prompt), 16);
  }
  // p:1, p:2 and d:1; prompts 1 to 3 are cached on `owner`, in device pages.
  void JoinAll(const std::string& owner, v1::WorkerState::Phase phase_of_p1) {
    v1::WorkerState first = State(v1::WorkerState::PREFILL);
    first.set_worker_id("first");
    first.set_phase(phase_of_p1);
    Join("p:1", first);
    Join("p:2", State(v1::WorkerState::PREFILL));
    Join("d:1", State(v1::WorkerState::DECODE));
    const uint32_t index = *table_->IndexOf(owner);
    v1::BlockEvents batch;
    for (const uint32_t prompt : {1u, 2u, 3u}) {
      v1::BlocksStored& stored = *batch.add_events()->mutable_stored();
      stored.set_tier(v1::DEVICE);
      for (const BlockId& id : IdsOf(prompt)) {
        stored.mutable_ids()->append(id.bytes.begin(), id.bytes.end());
      }
    }
    table_->prefixes().OnStreamStarted(index);
    ASSERT_TRUE(table_->prefixes().OnEvents(index, batch).ok());
  }
  PlacedPair PlacePrompt(uint32_t prompt = 1) {
    auto placed = table_->Place(
        {.need = {.prompt_tokens = 820, .answer_tokens = 10}, .ids = IdsOf(prompt), .explain = 4});
    EXPECT_TRUE(placed.ok()) << placed.status();
    return *std::move(placed);
  }
  v1::FirstTokens Outcome(v1::PeerRead::Outcome outcome, double ms) {
    v1::FirstTokens first;
    first.set_compute_ms(164);
    first.set_computed_tokens(820);
    first.mutable_peer()->set_outcome(outcome);
    first.mutable_peer()->set_ms(ms);
    return first;
  }

  // Everybody is still there and says nothing new.
  void Refresh(uint64_t sequence) {
    v1::WorkerState draining = State(v1::WorkerState::PREFILL);
    draining.set_phase(v1::WorkerState::DRAINING);
    table_->OnState("p:1", draining);
    table_->OnState("p:2", State(v1::WorkerState::PREFILL));
    table_->OnState("d:1", State(v1::WorkerState::DECODE));
    v1::BlockEvents heartbeat;
    heartbeat.set_sequence(sequence);
    ASSERT_TRUE(table_->prefixes().OnEvents(*table_->IndexOf("p:1"), heartbeat).ok());
  }
};

TEST_F(PeerReadsTest, ADrainingWorkersPrefixIsFetched) {
  JoinAll("p:1", v1::WorkerState::DRAINING);
  const PlacedPair placed = PlacePrompt();
  EXPECT_EQ(placed.prefill.life.first, "p:2");
  ASSERT_TRUE(placed.peer.has_value());
  EXPECT_EQ(placed.peer->endpoint(), "p:1");
  EXPECT_EQ(placed.peer->own_endpoint(), "p:2");
  EXPECT_EQ(placed.peer->blocks(), 50u);
  EXPECT_NEAR(placed.peer->patience_ms(), 160, 1);  // 800 tokens of 0.2 ms
  const v1::ScoredPair& chosen = placed.explanation->candidates(0);
  EXPECT_EQ(chosen.source_worker(), "first");
  EXPECT_EQ(chosen.fetched_tokens(), 800u);
  EXPECT_GT(chosen.fetch_ms(), 0);
}

TEST_F(PeerReadsTest, ADecodeWorkersPrefixIsFetched) {
  JoinAll("d:1", v1::WorkerState::READY);
  const PlacedPair placed = PlacePrompt();
  ASSERT_TRUE(placed.peer.has_value());
  EXPECT_EQ(placed.peer->endpoint(), "d:1");
  EXPECT_EQ(placed.peer->own_endpoint(), placed.prefill.life.first);
}

TEST_F(PeerReadsTest, NothingIsFetchedFromWhoIsOutOfSight) {
  JoinAll("p:1", v1::WorkerState::UNHEALTHY);
  EXPECT_FALSE(PlacePrompt().peer.has_value());
}

TEST_F(PeerReadsTest, NothingIsFetchedWhereThatIsTurnedOff) {
  table_ = std::make_shared<WorkerTable>(clock_, 3s, nullptr, PeerReadPolicy{.on = false});
  JoinAll("p:1", v1::WorkerState::DRAINING);
  EXPECT_FALSE(PlacePrompt().peer.has_value());
}

// Expected blocks are not in the store yet.
TEST_F(PeerReadsTest, NothingIsFetchedThatIsOnlyExpected) {
  Join("p:2", State(v1::WorkerState::PREFILL));
  Join("d:1", State(v1::WorkerState::DECODE));
  const PlacedPair first = PlacePrompt();
  Join("p:1", State(v1::WorkerState::PREFILL));
  v1::WorkerState draining = State(v1::WorkerState::PREFILL);
  draining.set_phase(v1::WorkerState::DRAINING);
  table_->OnState("p:2", draining);
  EXPECT_FALSE(PlacePrompt().peer.has_value());
}

TEST_F(PeerReadsTest, AWorkerThatCouldNotBeReadFromIsLeftAloneForAWhile) {
  JoinAll("p:1", v1::WorkerState::DRAINING);
  const PlacedPair placed = PlacePrompt(1);
  ASSERT_TRUE(placed.peer.has_value());
  table_->OnFirstTokens(*placed.forecast, Outcome(v1::PeerRead::LOST, 3));
  EXPECT_FALSE(PlacePrompt(2).peer.has_value());
  for (uint64_t i = 1; i <= 4; ++i) {
    clock_.Advance(2500ms);
    Refresh(i);
  }
  EXPECT_TRUE(PlacePrompt(3).peer.has_value());
}

TEST_F(PeerReadsTest, ReadingIsPricedAsItTurnedOut) {
  JoinAll("p:1", v1::WorkerState::DRAINING);
  const double guessed = PlacePrompt(1).explanation->candidates(0).fetch_ms();
  const PlacedPair placed = PlacePrompt(2);
  ASSERT_TRUE(placed.peer.has_value());
  v1::FirstTokens first = Outcome(v1::PeerRead::READ, 60);
  first.mutable_peer()->set_blocks(50);
  for (int i = 0; i < 50; ++i) table_->OnFirstTokens(*placed.forecast, first);
  const double learned = PlacePrompt(3).explanation->candidates(0).fetch_ms();
  EXPECT_NEAR(learned, 60, 6);
  EXPECT_LT(guessed, 20);
}

}  // namespace
}  // namespace penstock
