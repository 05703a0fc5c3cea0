#pragma once

#include <optional>
#include <string>

#include "base/clock.h"
#include "proto/inference.pb.h"
#include "proto/worker.pb.h"

namespace penstock {

// The figures of one session, as Timing and Usage report them. Pure.
class SessionTiming {
 public:
  explicit SessionTiming(TimePoint received) : received_(received) {}

  void OnOpened(const std::string& prefill_worker, const std::string& decode_worker, TimePoint now);
  void OnReplan() { ++migrations_; }
  // `again`: of a plan after the first.
  void OnFirstTokens(const v1::FirstTokens& first, bool again, TimePoint now);
  void OnHandoff(const v1::HandoffDone& handoff);
  void OnToken(TimePoint now) { last_token_ = now; }
  void OnSent(TimePoint now);

  v1::Timing Report() const;
  // From the first plan to the first token that came.
  google::protobuf::Duration FirstTokenAfterPlan() const;
  uint32_t recomputed_tokens() const { return recomputed_tokens_; }

 private:
  const TimePoint received_;
  std::optional<TimePoint> opened_;
  std::optional<TimePoint> first_token_;
  std::optional<TimePoint> first_sent_;
  TimePoint last_token_;
  uint32_t migrations_ = 0;
  uint32_t recomputed_tokens_ = 0;
  v1::Timing report_;
};

}  // namespace penstock
