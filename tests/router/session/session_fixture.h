#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "lab/fake/fake_model.h"
#include "lab/fake/test_model.h"
#include "router/session/session.h"

namespace penstock {

constexpr uint64_t kSessionSeed = 42;
inline const std::vector<uint32_t> kSessionPrompt = {'h', 'e', 'l', 'l', 'o'};

// The calls of one attempt.
struct Opened {
  int attempt = 0;
  v1::PrefillRequest prefill;
  v1::DecodeRequest decode;
  bool prefill_cancelled = false;
  bool decode_cancelled = false;
  std::optional<v1::MoveRequest> move = {};  // set by Move
};

// The workers and the client of a session. The test decides what happens.
class SessionWorld : public SessionEffects {
 public:
  absl::StatusOr<PlacedPair> Place(int, bool is_new, const PlacementNeed& need,
                                   const WorkerFailures& failures) override {
    if (is_new) ++placed_as_new;
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
    ASSIGN_OR_RETURN(PlacedPair pair, Place(attempt, /*is_new=*/false, need, failures));
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
      const v1::Chunk& chunk = response.chunk();
      text[chunk.index()] += chunk.text();
      auto& known = logprobs[chunk.index()];
      known.insert(known.end(), chunk.logprobs().begin(), chunk.logprobs().end());
      prompt.insert(prompt.end(), chunk.prompt_logprobs().begin(), chunk.prompt_logprobs().end());
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
  int placed_as_new = 0;  // placements of a new request, not of a retry
  WorkerFailures failures_seen;
  std::deque<Opened> opened;
  std::map<uint32_t, std::string> text;  // by choice
  std::map<uint32_t, std::vector<v1::TokenLogprob>> logprobs;
  std::vector<v1::TokenLogprob> prompt;  // of all choices
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
        .request_id = "r", .prompt = kSessionPrompt, .tenant_id = "t", .received = now_};
    request.answer.sampling.set_choices(choices);
    request.answer.answers = answers_.value_or(choices);
    if (beams_) request.answer.sampling.mutable_beams()->set_width(choices);
    request.answer.sampling.set_max_tokens(max_tokens);
    request.answer.sampling.set_seed(kSessionSeed);
    request.answer.stop = stop;
    request.answer.timing = timing;
    request.answer.echo = echo_;
    request.answer.return_logprobs = logprobs_;
    request.answer.prompt_logprobs = prompt_logprobs_;
    request.answer.prompt_only = prompt_only_;
    request.answer.embedding = embedding_;
    if (echo_) request.echo = "hello";
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
  // The worker's queue is full.
  void Refuse(const Opened& attempt, Side side) {
    session_->OnEnded(attempt.attempt, side, ResourceExhausted("64 wait here"), now_);
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

  static std::string Expected(uint32_t choice, uint32_t count) {
    return FakeAnswer(kSessionPrompt, kSessionSeed, choice, count);
  }

  const ServedModel model_ = MakeTestModel();
  TimePoint now_{std::chrono::seconds(1000)};
  SessionLimits limits_;
  Duration first_token_limit_{};
  bool echo_ = false;
  std::optional<uint32_t> answers_;  // of the choices; default: all
  bool beams_ = false;
  bool logprobs_ = false;
  std::optional<uint32_t> prompt_logprobs_;
  bool prompt_only_ = false;
  std::optional<EmbeddingSpec> embedding_;
  SessionWorld world_;
  std::optional<Session> session_;
};

}  // namespace penstock
