#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "proto/inference.pb.h"
#include "proto/worker.pb.h"

namespace penstock {

// Where the time of a request goes, once each, of its first plan.
enum class Stage {
  kRoute,        // until workers are chosen
  kCredit,       // until the decode worker has set blocks aside
  kQueue,        // in the prefill worker
  kPrefill,      // compute of the prompt
  kExposed,      // of the KV's transfer, what compute did not hide
  kCommit,       // from the first token to the KV being there for decode
  kFirstDecode,  // from there to the second token
  kWrite,        // from the first token's arrival here to its being sent
};
inline constexpr size_t kStages = 8;
using StageTimes = std::array<std::optional<Duration>, kStages>;

inline constexpr const char* kMigrationReasons[] = {"worker_lost", "kv_failure", "no_room", "other",
                                                    "drained"};

// A plan after the first, or a choice that was handed to another decode worker ("drained").
struct Migration {
  const char* reason;  // of kMigrationReasons
  TimePoint at;
  std::optional<Duration> gap;  // until the next token, where some were there before
};

// The figures of one session, as Timing, Usage and metrics report them. Pure.
class SessionTiming {
 public:
  SessionTiming(TimePoint received, uint32_t prompt_tokens)
      : received_(received), prompt_tokens_(prompt_tokens) {}

  void OnStarted(TimePoint now) { started_ = now; }
  void OnOpened(const std::string& prefill_worker, const std::string& decode_worker, TimePoint now);
  void OnReplan(const absl::Status& why, TimePoint now);
  // A choice runs on `decode_worker` now; it was asked to move at `asked`.
  void OnMoved(const std::string& decode_worker, TimePoint asked);
  void OnAdmitted(TimePoint now);
  void OnCommitted(TimePoint now);
  // `again`: of a plan after the first.
  void OnFirstTokens(const v1::FirstTokens& first, bool again, TimePoint now);
  void OnHandoff(const v1::HandoffDone& handoff);
  void OnToken(TimePoint now);
  void OnSent(TimePoint now);

  v1::Timing Report() const;
  const StageTimes& stages() const { return stages_; }
  const std::vector<Migration>& migrations() const { return migrations_; }
  uint32_t prompt_tokens() const { return prompt_tokens_; }
  uint32_t cached_tokens() const { return cached_tokens_; }
  uint32_t pinned_tokens() const { return pinned_tokens_; }
  // From the first plan to the first token that came.
  google::protobuf::Duration FirstTokenAfterPlan() const;
  uint32_t recomputed_tokens() const { return recomputed_tokens_; }

 private:
  void Set(Stage stage, Duration took);

  const TimePoint received_;
  const uint32_t prompt_tokens_;
  TimePoint started_;
  std::optional<TimePoint> opened_;
  std::optional<TimePoint> committed_;
  std::optional<TimePoint> first_token_;
  std::optional<TimePoint> first_sent_;
  TimePoint last_token_;
  StageTimes stages_;
  std::vector<Migration> migrations_;
  uint32_t cached_tokens_ = 0;  // as the first prefill saw it
  uint32_t pinned_tokens_ = 0;  // as the first prefill granted it
  uint32_t recomputed_tokens_ = 0;
  v1::Timing report_;
};

}  // namespace penstock
