#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "proto/inference.pb.h"
#include "proto/worker.pb.h"

namespace penstock {

// The stages of a request's first attempt. Each is measured at most once.
enum class Stage {
  kRoute,        // until workers are chosen
  kCredit,       // until the decode worker has reserved blocks
  kQueue,        // waiting in the prefill worker
  kPrefill,      // compute of the prompt
  kExposed,      // the part of the KV transfer that compute does not hide
  kCommit,       // from the first token to the commit of the KV on the decode worker
  kFirstDecode,  // from the commit to the second token
  kWrite,        // from the first token's arrival at the router to its sending
};
inline constexpr size_t kStages = 8;
using StageTimes = std::array<std::optional<Duration>, kStages>;

inline constexpr const char* kMigrationReasons[] = {"worker_lost", "kv_failure", "no_room", "other",
                                                    "drained"};

// A new attempt after a failure, or a choice that moved off a draining decode worker ("drained").
struct Migration {
  const char* reason;  // one of kMigrationReasons
  TimePoint at;
  std::optional<Duration> gap;  // pause until the next token; nullopt: no token came before it
};

// A stage or a migration, for tracing tools. It may overlap others.
struct StageSpan {
  std::string name;
  TimePoint start, end;
  std::string worker = {};  // who worked; empty: the router
  std::string reason = {};  // of a migration
};

// The figures of one session, as Timing, Usage and metrics report them. No clock, no I/O; one
// thread at a time.
class SessionTiming {
 public:
  SessionTiming(TimePoint received, uint32_t prompt_tokens)
      : received_(received), prompt_tokens_(prompt_tokens) {}

  void OnStarted(TimePoint now) { started_ = now; }
  void OnOpened(const std::string& prefill_worker, const std::string& decode_worker, TimePoint now);
  void OnReplan(const absl::Status& why, TimePoint now);
  // A choice now runs on `decode_worker`; the move was requested at `asked`.
  void OnMoved(const std::string& decode_worker, TimePoint asked);
  void OnAdmitted(TimePoint now);
  void OnCommitted(TimePoint now);
  // `again`: from an attempt after the first.
  void OnFirstTokens(const v1::FirstTokens& first, bool again, TimePoint now);
  void OnHandoff(const v1::HandoffDone& handoff);
  void OnToken(TimePoint now);
  void OnGuesses(const v1::TokenOut& token);  // of speculation; of each token in order
  void OnAttention(const v1::TokenOut& token);
  void OnSent(TimePoint now);

  v1::Timing Report() const;
  const StageTimes& stages() const { return stages_; }
  TimePoint received() const { return received_; }
  // The measured stages of the first attempt, *decode* (from the first token to the last) and the
  // migrations, sorted by start. Workers report *queue*, *prefill* and *exposed* as durations only:
  // prefill is shown to end, and exposed to begin, when the first token reached the router.
  std::vector<StageSpan> Timeline() const;
  const std::vector<Migration>& migrations() const { return migrations_; }
  uint32_t prompt_tokens() const { return prompt_tokens_; }
  uint32_t cached_tokens() const { return cached_tokens_; }
  uint32_t pinned_tokens() const { return pinned_tokens_; }
  uint32_t evicted_tokens() const { return evicted_tokens_; }
  void ReportBlend(v1::Usage& usage) const;  // of a prompt that was blended
  // Those that the last token of a choice attended to, the most of the choices; 0: all.
  uint32_t attended_tokens() const;
  // The time from the first placement to the first token.
  google::protobuf::Duration FirstTokenAfterPlan() const;
  uint32_t recomputed_tokens() const { return recomputed_tokens_; }
  uint32_t accepted_guesses() const { return accepted_guesses_; }  // of speculation
  uint32_t rejected_guesses() const { return rejected_guesses_; }

 private:
  void Set(Stage stage, Duration took);
  Duration Of(Stage stage) const {
    return stages_[static_cast<size_t>(stage)].value_or(Duration(0));
  }

  const TimePoint received_;
  const uint32_t prompt_tokens_;
  TimePoint started_;
  std::optional<TimePoint> opened_;
  std::string prefill_worker_, decode_worker_;  // of the first attempt
  std::optional<TimePoint> committed_;
  std::optional<TimePoint> first_token_;
  std::optional<TimePoint> first_sent_;
  TimePoint last_token_;
  StageTimes stages_;
  std::vector<Migration> migrations_;
  uint32_t cached_tokens_ = 0;  // reported by the first prefill
  uint32_t pinned_tokens_ = 0;  // granted by the first prefill
  uint32_t evicted_tokens_ = 0;
  std::optional<v1::BlendResult> blend_;
  std::map<uint32_t, uint32_t> attended_;  // by choice
  uint32_t recomputed_tokens_ = 0;
  uint32_t accepted_guesses_ = 0;
  uint32_t rejected_guesses_ = 0;
  v1::Timing report_;
};

}  // namespace penstock
