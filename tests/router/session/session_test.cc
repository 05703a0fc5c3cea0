#include "router/session/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "base/check.h"
#include "lab/fake/fake_model.h"
#include "lab/fake/test_model.h"
#include "router/request/error_detail.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

constexpr uint64_t kSeed = 42;
const std::vector<uint32_t> kPrompt = {'h', 'e', 'l', 'l', 'o'};

struct Opened {
  int attempt = 0;
  v1::PrefillRequest prefill;
  v1::DecodeRequest decode;
  bool prefill_cancelled = false;
  bool decode_cancelled = false;
  std::optional<v1::MoveRequest> move = {};  // set by Move
};

// A world in which the test decides what happens.
class World : public SessionEffects {
 public:
  absl::StatusOr<PlacedPair> Place(int, const PlacementNeed& need,
                                   const WorkerFailures& failures) override {
    needs.push_back(need);
    failures_seen = failures;
    if (!placeable.ok()) return placeable;
    ++reserved;
    PlacedPair pair;
    const std::string number = std::to_string(needs.size());
    pair.prefill = {.life = {"p:" + number, 1}, .worker_id = "p" + number};
    pair.decode = {.life = {"d:" + number, 1}, .worker_id = "d" + number};
    pair.decode.reservation = Reservation([this] { --reserved; });
    pair.local_prefill = local_prefill && need.may_prefill_locally;
    if (pair.local_prefill) pair.prefill = {};
    pair.format = {1, 2, 16};
    pair.peer = peer;
    return pair;
  }
  void Open(int attempt, const PlacedPair&, const v1::PrefillRequest& prefill,
            const v1::DecodeRequest& decode) override {
    opened.push_back({.attempt = attempt, .prefill = prefill, .decode = decode});
  }
  absl::StatusOr<PlacedPair> PlaceTarget(int attempt, const PlacementNeed& need,
                                         const WorkerFailures& failures) override {
    ASSIGN_OR_RETURN(PlacedPair pair, Place(attempt, need, failures));
    pair.prefill = {};
    return pair;
  }
  void OpenTarget(int attempt, const PlacedPair& workers,
                  const v1::DecodeRequest& decode) override {
    opened.push_back({.attempt = attempt, .prefill = {}, .decode = decode});
    movers_from = workers.prefill.worker_id;
  }
  void Move(int attempt, const PlacedPair&, const v1::MoveRequest& move) override {
    for (Opened& call : opened) {
      if (call.attempt == attempt) call.move = move;
    }
  }
  void Cancel(int attempt, Side side) override {
    for (Opened& call : opened) {
      if (call.attempt != attempt) continue;
      (side == Side::kPrefill ? call.prefill_cancelled : call.decode_cancelled) = true;
    }
  }
  void Send(v1::GenerateResponse response) override {
    PENSTOCK_CHECK(!finished.has_value());
    if (response.has_chunk()) {
      text[response.chunk().index()] += response.chunk().text();
    } else {
      endings.push_back(response.final());
    }
  }
  void Finish(const absl::Status& status) override {
    PENSTOCK_CHECK(!finished.has_value());
    finished = status;
  }
  void WakeAt(TimePoint when) override { wake_at = when; }
  uint64_t Random() override { return ++random; }

  absl::Status placeable;
  std::optional<v1::PeerPrefix> peer;  // of every placement
  bool local_prefill = false;          // place the first attempt as a local prefill
  std::vector<PlacementNeed> needs;
  WorkerFailures failures_seen;
  std::deque<Opened> opened;
  std::map<uint32_t, std::string> text;  // by choice
  std::vector<v1::Final> endings;
  std::optional<absl::Status> finished;
  std::optional<TimePoint> wake_at;
  std::string movers_from;  // the latest
  int reserved = 0;
  uint64_t random = 100;
};

class SessionTest : public ::testing::Test {
 protected:
  void Begin(uint32_t choices, uint32_t max_tokens, std::vector<std::string> stop = {},
             bool timing = false) {
    SessionRequest request{
        .request_id = "r", .prompt = kPrompt, .tenant_id = "t", .received = now_};
    request.answer.sampling.set_choices(choices);
    request.answer.sampling.set_max_tokens(max_tokens);
    request.answer.sampling.set_seed(kSeed);
    request.answer.stop = stop;
    request.answer.timing = timing;
    request.first_token_limit = first_token_limit_;
    session_.emplace(std::move(request), *model_.tokenizer, *StopMatcher::Create(stop), limits_,
                     world_);
    session_->Start(now_);
  }

  std::vector<FakeChoice> ChoicesOf(const Opened& attempt) {
    const auto& tokens = attempt.decode.tokens();
    std::vector<FakeChoice> choices;
    for (uint32_t i = 0; i < attempt.decode.sampling().choices(); ++i) {
      choices.emplace_back(std::vector<uint32_t>(tokens.begin(), tokens.end()),
                           attempt.decode.prompt_tokens(), attempt.decode.sampling(),
                           attempt.decode.sampling().first_choice() + i);
    }
    return choices;
  }

  void SendFirst(const Opened& attempt, std::vector<FakeChoice>& choices) {
    v1::PrefillEvent event;
    for (FakeChoice& choice : choices) *event.mutable_first()->add_tokens() = choice.Next();
    event.mutable_first()->set_computed_tokens(attempt.prefill.tokens_size());
    session_->OnPrefillEvent(attempt.attempt, event, now_);
  }

  void SendToken(const Opened& attempt, FakeChoice& choice) {
    session_->OnDecodeToken(attempt.attempt, choice.Next(), now_);
  }

  // Plays an attempt to its end, as good workers do.
  void Answer(const Opened& attempt) {
    std::vector<FakeChoice> choices = ChoicesOf(attempt);
    SendFirst(attempt, choices);
    for (FakeChoice& choice : choices) {
      while (!choice.ended() && !world_.finished) SendToken(attempt, choice);
    }
  }

  void Break(const Opened& attempt, Side side) {
    session_->OnEnded(attempt.attempt, side, Unavailable("Socket closed"), now_);
  }

  // A decode worker's events: the session is admitted; its KV has arrived.
  void Admit(const Opened& attempt) {
    v1::DecodeEvent event;
    event.mutable_admitted();
    session_->OnDecodeEvent(attempt.attempt, event, now_);
  }
  void Commit(const Opened& attempt) {
    v1::DecodeEvent event;
    event.mutable_committed();
    session_->OnDecodeEvent(attempt.attempt, event, now_);
  }

  // A request whose choices have `tokens` tokens each, on a decode worker that is now draining.
  std::vector<FakeChoice> BeginAndLeave(uint32_t count, int tokens) {
    Begin(count, 30);
    std::vector<FakeChoice> choices = ChoicesOf(world_.opened[0]);
    SendFirst(world_.opened[0], choices);
    Commit(world_.opened[0]);
    for (FakeChoice& choice : choices) {
      for (int i = 1; i < tokens; ++i) SendToken(world_.opened[0], choice);
    }
    session_->OnDraining(0, now_);
    return choices;
  }

  // The target continues after the last token of the MoveRequest.
  void AnswerMoved(const Opened& attempt) {
    std::vector<FakeChoice> choices = ChoicesOf(attempt);
    EXPECT_EQ(choices[0].Next().token(), attempt.move->last_token());
    while (!choices[0].ended() && !world_.finished) SendToken(attempt, choices[0]);
  }

  static std::string Expected(uint32_t choice, uint32_t count) {
    return FakeAnswer(kPrompt, kSeed, choice, count);
  }

  const ServedModel model_ = MakeTestModel();
  TimePoint now_{1000s};
  SessionLimits limits_;
  Duration first_token_limit_{};
  World world_;
  std::optional<Session> session_;
};

TEST_F(SessionTest, AnswersEveryTokenOnceAndFinishes) {
  Begin(1, 20);
  ASSERT_EQ(world_.opened.size(), 1u);
  EXPECT_EQ(world_.opened[0].prefill.decode_endpoint(), "d:1");
  EXPECT_EQ(world_.opened[0].prefill.key().nonce(), world_.opened[0].decode.key().nonce());
  Answer(world_.opened[0]);
  ASSERT_TRUE(world_.finished.has_value());
  EXPECT_TRUE(world_.finished->ok()) << *world_.finished;
  EXPECT_EQ(world_.text[0], Expected(0, 20));
  ASSERT_EQ(world_.endings.size(), 1u);
  EXPECT_EQ(world_.endings[0].finish_reason(), v1::LENGTH);
  EXPECT_EQ(world_.endings[0].usage().prompt_tokens(), 5u);
  EXPECT_EQ(world_.endings[0].usage().completion_tokens(), 20u);
  EXPECT_EQ(world_.endings[0].usage().recomputed_tokens(), 0u);
  EXPECT_EQ(world_.reserved, 0);
}

TEST_F(SessionTest, ThePrefillWorkerIsToldWhereMoreOfThePrefixIs) {
  world_.peer.emplace().set_endpoint("p:9");
  world_.peer->set_blocks(3);
  Begin(1, 20);
  EXPECT_EQ(world_.opened[0].prefill.peer().endpoint(), "p:9");
  EXPECT_EQ(world_.opened[0].prefill.peer().blocks(), 3u);
  world_.peer.reset();
  Break(world_.opened[0], Side::kPrefill);
  ASSERT_EQ(world_.opened.size(), 2u);
  EXPECT_FALSE(world_.opened[1].prefill.has_peer()) << "the next plan has none";
}

TEST_F(SessionTest, BothWorkersAreToldWhoseQuotaPinsCountAgainst) {
  Begin(1, 20);
  EXPECT_EQ(world_.opened[0].prefill.tenant_id(), "t");
  EXPECT_EQ(world_.opened[0].decode.tenant_id(), "t");
}

TEST_F(SessionTest, KeepsOrderWhenDecodeIsFasterThanThePrefillReport) {
  Begin(1, 10);
  std::vector<FakeChoice> choices = ChoicesOf(world_.opened[0]);
  v1::PrefillEvent first;
  *first.mutable_first()->add_tokens() = choices[0].Next();
  while (!choices[0].ended()) SendToken(world_.opened[0], choices[0]);
  EXPECT_EQ(world_.text[0], "");
  session_->OnPrefillEvent(0, first, now_);
  EXPECT_EQ(world_.text[0], Expected(0, 10));
  EXPECT_TRUE(world_.finished->ok());
}

TEST_F(SessionTest, GoesOnExactlyWhereADecodeWorkerDied) {
  Begin(1, 30);
  std::vector<FakeChoice> choices = ChoicesOf(world_.opened[0]);
  SendFirst(world_.opened[0], choices);
  for (int i = 0; i < 11; ++i) SendToken(world_.opened[0], choices[0]);
  Break(world_.opened[0], Side::kDecode);
  ASSERT_EQ(world_.opened.size(), 2u);
  EXPECT_TRUE(world_.opened[0].prefill_cancelled);
  const Opened& second = world_.opened[1];
  EXPECT_EQ(second.prefill.tokens_size(), 5 + 12);
  EXPECT_EQ(second.prefill.prompt_tokens(), 5u);
  EXPECT_EQ(second.prefill.key().session(), world_.opened[0].prefill.key().session());
  EXPECT_EQ(second.prefill.key().epoch(), 1u);
  EXPECT_NE(second.prefill.key().nonce(), world_.opened[0].prefill.key().nonce());
  EXPECT_EQ(world_.failures_seen, (WorkerFailures{{{"d:1", 1}, 2}})) << "its KV had arrived";
  EXPECT_EQ(world_.needs[1].format, (KvFormat{1, 2, 16}));
  Answer(second);
  EXPECT_TRUE(world_.finished->ok()) << *world_.finished;
  EXPECT_EQ(world_.text[0], Expected(0, 30));
  EXPECT_EQ(world_.endings[0].usage().recomputed_tokens(), 17u);
  EXPECT_EQ(world_.reserved, 0);
}

TEST_F(SessionTest, PlansAnewWhenAPrefillWorkerDiesBeforeTheFirstToken) {
  Begin(2, 10);
  Break(world_.opened[0], Side::kPrefill);
  ASSERT_EQ(world_.opened.size(), 2u);
  EXPECT_EQ(world_.failures_seen, (WorkerFailures{{{"p:1", 1}, 2}, {{"d:1", 1}, 1}}));
  EXPECT_FALSE(world_.needs[1].format.has_value()) << "nothing is answered yet";
  // Messages of the failed first attempt are ignored.
  std::vector<FakeChoice> late = ChoicesOf(world_.opened[0]);
  SendFirst(world_.opened[0], late);
  EXPECT_EQ(world_.text[0], "");
  Answer(world_.opened[1]);
  EXPECT_EQ(world_.text[0], Expected(0, 10));
  EXPECT_EQ(world_.text[1], Expected(1, 10));
}

TEST_F(SessionTest, APrefillWorkerMayDieOnceItsKvHasArrived) {
  Begin(1, 10);
  std::vector<FakeChoice> choices = ChoicesOf(world_.opened[0]);
  SendFirst(world_.opened[0], choices);
  SendToken(world_.opened[0], choices[0]);
  Break(world_.opened[0], Side::kPrefill);
  EXPECT_EQ(world_.opened.size(), 1u);
  while (!choices[0].ended()) SendToken(world_.opened[0], choices[0]);
  EXPECT_EQ(world_.text[0], Expected(0, 10));
}

TEST_F(SessionTest, ChoicesThatDifferGoOnInALegEach) {
  Begin(4, 12);
  std::vector<FakeChoice> choices = ChoicesOf(world_.opened[0]);
  SendFirst(world_.opened[0], choices);
  for (int i = 0; i < 3; ++i) SendToken(world_.opened[0], choices[2]);
  while (!choices[1].ended()) SendToken(world_.opened[0], choices[1]);
  Break(world_.opened[0], Side::kDecode);
  ASSERT_EQ(world_.opened.size(), 4u) << "choices 0, 2 and 3 are open";
  std::vector<uint32_t> firsts;
  std::vector<uint64_t> sessions;
  for (size_t i = 1; i < 4; ++i) {
    firsts.push_back(world_.opened[i].decode.sampling().first_choice());
    sessions.push_back(world_.opened[i].decode.key().session());
    EXPECT_EQ(world_.opened[i].decode.sampling().choices(), 1u);
  }
  EXPECT_THAT(firsts, ElementsAre(0, 2, 3));
  EXPECT_NE(sessions[0], sessions[1]);
  EXPECT_NE(sessions[1], sessions[2]);
  for (size_t i = 1; i < 4; ++i) Answer(world_.opened[i]);
  EXPECT_TRUE(world_.finished->ok()) << *world_.finished;
  for (uint32_t choice = 0; choice < 4; ++choice) {
    EXPECT_EQ(world_.text[choice], Expected(choice, 12)) << choice;
  }
  EXPECT_EQ(world_.endings.size(), 4u);
}

TEST_F(SessionTest, AStopStringCutsTheAnswerAndCancelsTheAttempt) {
  const std::string whole = Expected(0, 40);
  const std::string stop = whole.substr(10, 6);
  Begin(1, 40, {stop});
  Answer(world_.opened[0]);
  EXPECT_TRUE(world_.finished->ok()) << *world_.finished;
  EXPECT_EQ(world_.text[0], whole.substr(0, whole.find(stop)));
  EXPECT_EQ(world_.endings[0].finish_reason(), v1::STOP);
  EXPECT_EQ(world_.endings[0].matched_stop_string(), stop);
  EXPECT_EQ(world_.endings[0].usage().completion_tokens(), whole.find(stop) + 6);
  EXPECT_TRUE(world_.opened[0].decode_cancelled);
}

TEST_F(SessionTest, WithSeveralChoicesAStopEndsOnlyItsOwn) {
  const std::string stop = Expected(1, 40).substr(5, 6);
  Begin(2, 40, {stop});
  Answer(world_.opened[0]);
  EXPECT_TRUE(world_.finished->ok());
  EXPECT_EQ(world_.text[0], Expected(0, 40));
  EXPECT_LE(world_.text[1].size(), 5u);
}

TEST_F(SessionTest, WaitsForAWorkerAndThenGivesUp) {
  world_.placeable = Unavailable("no prefill worker is ready");
  Begin(1, 10);
  EXPECT_FALSE(world_.finished.has_value());
  EXPECT_TRUE(session_->waits_for_worker());
  EXPECT_EQ(world_.wake_at, now_ + 2s);
  now_ += 1s;
  session_->OnWake(now_);
  EXPECT_FALSE(world_.finished.has_value());
  now_ += 1s;
  session_->OnWake(now_);
  ASSERT_TRUE(world_.finished.has_value());
  EXPECT_EQ(world_.finished->code(), absl::StatusCode::kUnavailable);
}

TEST_F(SessionTest, TakesAWorkerThatComesInTime) {
  world_.placeable = Unavailable("no prefill worker is ready");
  Begin(1, 10);
  world_.placeable = absl::OkStatus();
  now_ += 500ms;
  session_->OnWake(now_);
  ASSERT_EQ(world_.opened.size(), 1u);
  Answer(world_.opened[0]);
  EXPECT_EQ(world_.text[0], Expected(0, 10));
}

TEST_F(SessionTest, ANewRequestIsToldAtOnceThatAllAreFull) {
  world_.placeable = ResourceExhausted("full");
  Begin(1, 10);
  ASSERT_TRUE(world_.finished.has_value());
  EXPECT_EQ(world_.finished->code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(SessionTest, ANewRequestWaitsInLineForAWhile) {
  limits_.queue_wait = 1s;
  world_.placeable = WithDetail(ResourceExhausted("full"), {.reason = kReasonOverloaded});
  Begin(1, 10);
  EXPECT_FALSE(world_.finished.has_value());
  EXPECT_TRUE(session_->waits_for_worker());
  EXPECT_EQ(world_.wake_at, now_ + 1s);
  now_ += 500ms;
  session_->OnWake(now_);
  EXPECT_FALSE(world_.finished.has_value());
  now_ += 500ms;
  session_->OnWake(now_);
  ASSERT_TRUE(world_.finished.has_value());
  EXPECT_EQ(world_.finished->code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(SessionTest, ALimitCountsFromReceiptAndOnlyForTheFirstPlan) {
  first_token_limit_ = 400ms;
  Begin(1, 10);
  EXPECT_NEAR(world_.needs[0].ttft_limit_ms, 400, 1e-6);
  Break(world_.opened.back(), Side::kDecode);
  ASSERT_EQ(world_.needs.size(), 2u);
  EXPECT_EQ(world_.needs[1].ttft_limit_ms, 0);
}

TEST_F(SessionTest, GivesUpAfterTheLastPlanAndBacksOffBefore) {
  Begin(1, 10);
  Break(world_.opened.back(), Side::kDecode);
  EXPECT_EQ(world_.opened.size(), 2u) << "the second plan is made at once";
  for (size_t plans = 2; plans < 4; ++plans) {
    Break(world_.opened.back(), Side::kDecode);
    EXPECT_EQ(world_.opened.size(), plans) << "the next waits";
    now_ = *world_.wake_at;
    session_->OnWake(now_);
    EXPECT_EQ(world_.opened.size(), plans + 1);
  }
  Break(world_.opened.back(), Side::kDecode);
  ASSERT_TRUE(world_.finished.has_value());
  EXPECT_EQ(world_.finished->code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(*world_.finished), HasSubstr("gave up after 4 plans"));
  EXPECT_THAT(Message(*world_.finished), HasSubstr("decode worker d4: Socket closed"));
  EXPECT_EQ(world_.reserved, 0);
}

TEST_F(SessionTest, AnErrorThatAnotherPlanWouldRepeatEndsTheRequest) {
  Begin(1, 10);
  session_->OnEnded(0, Side::kPrefill, Internal("bad arithmetic"), now_);
  ASSERT_TRUE(world_.finished.has_value());
  EXPECT_EQ(world_.finished->code(), absl::StatusCode::kInternal);
  EXPECT_THAT(Message(*world_.finished), HasSubstr("prefill worker p1: bad arithmetic"));
  EXPECT_TRUE(world_.opened[0].decode_cancelled);
}

TEST_F(SessionTest, CallsThatEndTooEarlyCountAsFailures) {
  Begin(1, 10);
  session_->OnEnded(0, Side::kPrefill, absl::OkStatus(), now_);
  ASSERT_EQ(world_.opened.size(), 2u);
  std::vector<FakeChoice> choices = ChoicesOf(world_.opened[1]);
  SendFirst(world_.opened[1], choices);
  session_->OnEnded(1, Side::kDecode, absl::OkStatus(), now_);
  now_ = *world_.wake_at;
  session_->OnWake(now_);
  ASSERT_EQ(world_.opened.size(), 3u);
  Answer(world_.opened[2]);
  EXPECT_EQ(world_.text[0], Expected(0, 10));
}

TEST_F(SessionTest, TheDecodeCallMayEndBeforeTheFirstTokenIsReported) {
  Begin(1, 5);
  std::vector<FakeChoice> choices = ChoicesOf(world_.opened[0]);
  v1::PrefillEvent first;
  *first.mutable_first()->add_tokens() = choices[0].Next();
  while (!choices[0].ended()) SendToken(world_.opened[0], choices[0]);
  session_->OnEnded(0, Side::kDecode, absl::OkStatus(), now_);
  session_->OnPrefillEvent(0, first, now_);
  ASSERT_TRUE(world_.finished.has_value());
  EXPECT_TRUE(world_.finished->ok()) << *world_.finished;
  EXPECT_EQ(world_.text[0], Expected(0, 5));
}

TEST_F(SessionTest, ButNotWithoutItsTokens) {
  Begin(1, 5);
  session_->OnEnded(0, Side::kDecode, absl::OkStatus(), now_);
  EXPECT_EQ(world_.opened.size(), 1u);
  std::vector<FakeChoice> choices = ChoicesOf(world_.opened[0]);
  SendFirst(world_.opened[0], choices);
  ASSERT_EQ(world_.opened.size(), 2u);
  Answer(world_.opened[1]);
  EXPECT_EQ(world_.text[0], Expected(0, 5));
}

TEST_F(SessionTest, AWorkerThatContradictsItselfIsLeft) {
  Begin(1, 10);
  std::vector<FakeChoice> choices = ChoicesOf(world_.opened[0]);
  SendFirst(world_.opened[0], choices);
  v1::TokenOut of_nobody;
  of_nobody.set_choice(7);
  session_->OnDecodeToken(0, of_nobody, now_);
  ASSERT_EQ(world_.opened.size(), 2u);
  Answer(world_.opened[1]);
  EXPECT_EQ(world_.text[0], Expected(0, 10));
}

TEST_F(SessionTest, AClientThatLeavesCancelsBothCalls) {
  Begin(1, 10);
  session_->OnClientGone(Cancelled("gone"));
  EXPECT_TRUE(world_.opened[0].prefill_cancelled);
  EXPECT_TRUE(world_.opened[0].decode_cancelled);
  EXPECT_EQ(world_.reserved, 0);
  EXPECT_EQ(world_.finished->code(), absl::StatusCode::kCancelled);
  Break(world_.opened[0], Side::kDecode);  // comes too late to matter
  EXPECT_EQ(world_.opened.size(), 1u);
}

TEST_F(SessionTest, WithTimingTheLastFinalWaitsForTheHandoffsFigures) {
  Begin(1, 5, {}, /*timing=*/true);
  Answer(world_.opened[0]);
  EXPECT_FALSE(world_.finished.has_value());
  v1::PrefillEvent event;
  event.mutable_handoff()->set_kv_bytes(4096);
  event.mutable_handoff()->set_transport("tcp");
  session_->OnPrefillEvent(0, event, now_);
  session_->OnEnded(0, Side::kPrefill, absl::OkStatus(), now_);
  ASSERT_TRUE(world_.finished.has_value());
  EXPECT_EQ(world_.endings[0].timing().kv_bytes_moved(), 4096u);
  EXPECT_EQ(world_.endings[0].timing().transport(), "tcp");
  EXPECT_EQ(world_.endings[0].timing().decode_worker(), "d1");
}

TEST_F(SessionTest, AndDoesNotWaitForLong) {
  Begin(1, 5, {}, /*timing=*/true);
  Answer(world_.opened[0]);
  ASSERT_TRUE(world_.wake_at.has_value());
  now_ = *world_.wake_at;
  session_->OnWake(now_);
  EXPECT_TRUE(world_.finished.has_value());
}

TEST_F(SessionTest, ADecodeWorkerMayComputeThePromptItself) {
  world_.local_prefill = true;
  Begin(2, 12, {}, /*timing=*/true);
  ASSERT_EQ(world_.opened.size(), 1u);
  const Opened& only = world_.opened[0];
  EXPECT_TRUE(only.decode.prefill());
  EXPECT_EQ(only.prefill.tokens_size(), 0) << "nobody else was asked";
  std::vector<FakeChoice> choices = ChoicesOf(only);
  v1::DecodeEvent event;
  for (FakeChoice& choice : choices) *event.mutable_first()->add_tokens() = choice.Next();
  event.mutable_first()->set_cached_tokens(3);
  session_->OnDecodeEvent(only.attempt, event, now_);
  for (FakeChoice& choice : choices) {
    while (!choice.ended()) SendToken(only, choice);
  }
  ASSERT_TRUE(world_.finished.has_value()) << "no figures of a handoff are to come";
  EXPECT_EQ(world_.text[0], Expected(0, 12));
  EXPECT_EQ(world_.text[1], Expected(1, 12));
  EXPECT_EQ(world_.endings[1].usage().cached_tokens(), 3u);
  EXPECT_EQ(world_.endings[1].timing().prefill_worker(), "");
  EXPECT_EQ(world_.reserved, 0);
}

TEST_F(SessionTest, WhenItDoesNotAPrefillWorkerDoes) {
  world_.local_prefill = true;
  Begin(1, 12);
  session_->OnEnded(0, Side::kDecode, FailedPrecondition("too much is missing"), now_);
  ASSERT_EQ(world_.opened.size(), 2u);
  EXPECT_EQ(world_.failures_seen, (WorkerFailures{{{"d:1", 1}, 2}}));
  EXPECT_FALSE(world_.opened[1].decode.prefill());
  Answer(world_.opened[1]);
  EXPECT_EQ(world_.text[0], Expected(0, 12));
  EXPECT_EQ(world_.reserved, 0);
}

TEST_F(SessionTest, ChoicesMoveOneByOneWithoutPrefill) {
  std::vector<FakeChoice> choices = BeginAndLeave(2, 11);
  ASSERT_EQ(world_.opened.size(), 2u) << "one at a time";
  const Opened& first = world_.opened[1];
  EXPECT_EQ(first.decode.tokens_size(), 5 + 10) << "the last token's KV is still to come";
  EXPECT_EQ(first.decode.sampling().first_choice(), 0u);
  EXPECT_EQ(first.decode.sampling().choices(), 1u);
  EXPECT_EQ(world_.movers_from, "d1");
  EXPECT_FALSE(first.move.has_value()) << "nothing stands still before the target has room";
  SendToken(world_.opened[0], choices[0]);
  Admit(first);
  ASSERT_TRUE(first.move.has_value());
  EXPECT_EQ(first.move->source().nonce(), world_.opened[0].decode.key().nonce());
  EXPECT_EQ(first.move->key().nonce(), first.decode.key().nonce());
  EXPECT_EQ(first.move->tokens_size(), 15);
  EXPECT_EQ(first.move->target_endpoint(), "d:2");
  Commit(first);
  EXPECT_FALSE(world_.opened[0].decode_cancelled) << "the other choice is there";
  EXPECT_FALSE(first.prefill_cancelled) << "and this one stands still there";
  ASSERT_EQ(world_.opened.size(), 3u);
  const Opened& second = world_.opened[2];
  EXPECT_EQ(second.decode.sampling().first_choice(), 1u);
  AnswerMoved(first);
  Admit(second);
  Commit(second);
  EXPECT_TRUE(world_.opened[0].decode_cancelled);
  EXPECT_TRUE(first.prefill_cancelled);
  EXPECT_TRUE(second.prefill_cancelled);
  AnswerMoved(second);
  ASSERT_TRUE(world_.finished.has_value());
  EXPECT_TRUE(world_.finished->ok()) << *world_.finished;
  EXPECT_EQ(world_.text[0], Expected(0, 30));
  EXPECT_EQ(world_.text[1], Expected(1, 30));
  EXPECT_EQ(world_.endings[1].usage().recomputed_tokens(), 0u);
  EXPECT_EQ(session_->timing().migrations().size(), 2u);
  EXPECT_EQ(world_.reserved, 0);
}

TEST_F(SessionTest, WhenATargetFailsTheSourceGoesOn) {
  std::vector<FakeChoice> choices = BeginAndLeave(1, 5);
  for (size_t attempt = 1; attempt <= 3; ++attempt) {
    ASSERT_EQ(world_.opened.size(), attempt + 1);
    Admit(world_.opened[attempt]);
    Break(world_.opened[attempt], attempt == 2 ? Side::kPrefill : Side::kDecode);
    EXPECT_TRUE(attempt == 2 ? world_.opened[attempt].decode_cancelled
                             : world_.opened[attempt].prefill_cancelled)
        << "what stood still goes on";
    now_ += 1s;
    session_->OnWake(now_);
  }
  EXPECT_EQ(world_.opened.size(), 4u) << "three times is enough";
  EXPECT_EQ(world_.failures_seen, (WorkerFailures{{{"d:2", 1}, 2}}));
  while (!choices[0].ended()) SendToken(world_.opened[0], choices[0]);
  EXPECT_TRUE(world_.finished->ok());
  EXPECT_EQ(world_.text[0], Expected(0, 30));
  EXPECT_TRUE(session_->timing().migrations().empty());
  EXPECT_EQ(world_.reserved, 0);
}

TEST_F(SessionTest, WhenTheSourceDiesOnlyWhatHasNotMovedIsComputedAgain) {
  std::vector<FakeChoice> choices = BeginAndLeave(2, 5);
  Admit(world_.opened[1]);
  Commit(world_.opened[1]);
  ASSERT_EQ(world_.opened.size(), 3u);
  Admit(world_.opened[2]);
  SendToken(world_.opened[0], choices[1]);
  Break(world_.opened[0], Side::kDecode);
  EXPECT_TRUE(world_.opened[2].decode_cancelled);
  ASSERT_EQ(world_.opened.size(), 4u);
  const Opened& replanned = world_.opened[3];
  EXPECT_EQ(replanned.prefill.tokens_size(), 5 + 6);
  EXPECT_EQ(replanned.prefill.sampling().first_choice(), 1u);
  EXPECT_EQ(replanned.prefill.sampling().choices(), 1u);
  Commit(world_.opened[2]);  // comes too late to matter
  Answer(replanned);
  AnswerMoved(world_.opened[1]);
  ASSERT_TRUE(world_.finished.has_value());
  EXPECT_EQ(world_.text[0], Expected(0, 30));
  EXPECT_EQ(world_.text[1], Expected(1, 30));
  EXPECT_EQ(world_.reserved, 0);
}

TEST_F(SessionTest, WhatEndsWhileItMovesStays) {
  std::vector<FakeChoice> choices = BeginAndLeave(2, 5);
  Admit(world_.opened[1]);
  while (!choices[0].ended()) SendToken(world_.opened[0], choices[0]);
  EXPECT_TRUE(world_.opened[1].decode_cancelled);
  EXPECT_TRUE(world_.opened[1].prefill_cancelled);
  ASSERT_EQ(world_.opened.size(), 3u) << "the other choice's turn";
  EXPECT_EQ(world_.opened[2].decode.sampling().first_choice(), 1u);
  Commit(world_.opened[1]);  // comes too late to matter
  while (!choices[1].ended()) SendToken(world_.opened[0], choices[1]);
  ASSERT_TRUE(world_.finished.has_value());
  EXPECT_EQ(world_.text[1], Expected(1, 30));
  EXPECT_EQ(world_.reserved, 0);
}

TEST_F(SessionTest, AMoveWaitsForATarget) {
  Begin(1, 30);
  std::vector<FakeChoice> choices = ChoicesOf(world_.opened[0]);
  session_->OnDraining(0, now_);
  SendFirst(world_.opened[0], choices);
  EXPECT_EQ(world_.opened.size(), 1u) << "its KV is still on the way";
  world_.placeable = Unavailable("nobody");
  Commit(world_.opened[0]);
  EXPECT_EQ(world_.opened.size(), 1u);
  EXPECT_TRUE(session_->waits_for_worker());
  for (int i = 0; i < 4; ++i) SendToken(world_.opened[0], choices[0]);
  world_.placeable = absl::OkStatus();
  session_->OnWake(now_);
  ASSERT_EQ(world_.opened.size(), 2u);
  EXPECT_EQ(world_.opened[1].decode.tokens_size(), 5 + 4) << "what is known by now";
  Admit(world_.opened[1]);
  Commit(world_.opened[1]);
  AnswerMoved(world_.opened[1]);
  EXPECT_EQ(world_.text[0], Expected(0, 30));
  EXPECT_TRUE(world_.finished->ok());
}

}  // namespace
}  // namespace penstock
