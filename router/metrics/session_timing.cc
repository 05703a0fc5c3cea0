#include "router/metrics/session_timing.h"

#include <algorithm>
#include <set>
#include <utility>

namespace penstock {
namespace {

void Put(google::protobuf::Duration* target, Duration value) {
  target->set_seconds(value.count() / 1'000'000'000);
  target->set_nanos(static_cast<int32_t>(value.count() % 1'000'000'000));
}

Duration FromMs(double ms) { return Duration(static_cast<int64_t>(ms * 1e6)); }

const char* ReasonOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kDeadlineExceeded:
      return "worker_lost";
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kAborted:
      return "kv_failure";
    case absl::StatusCode::kResourceExhausted:
      return "no_room";
    default:
      return "other";
  }
}

}  // namespace

// Only the first attempt counts: a later attempt's times belong to a migration.
void SessionTiming::Set(Stage stage, Duration took) {
  std::optional<Duration>& known = stages_[static_cast<size_t>(stage)];
  if (!known && migrations_.empty()) known = took;
}

void SessionTiming::OnOpened(const std::string& prefill_worker, const std::string& decode_worker,
                             TimePoint now) {
  if (!opened_) {
    opened_ = now;
    prefill_worker_ = prefill_worker.empty() ? decode_worker : prefill_worker;
    decode_worker_ = decode_worker;
  }
  Set(Stage::kRoute, now - started_);
  report_.set_prefill_worker(prefill_worker);
  report_.set_decode_worker(decode_worker);
}

void SessionTiming::OnReplan(const absl::Status& why, TimePoint now) {
  migrations_.push_back({.reason = ReasonOf(why), .at = now, .gap = {}});
}

void SessionTiming::OnMoved(const std::string& decode_worker, TimePoint asked) {
  report_.set_decode_worker(decode_worker);
  migrations_.push_back({.reason = "drained", .at = asked, .gap = {}});
}

void SessionTiming::OnAdmitted(TimePoint now) {
  if (opened_) Set(Stage::kCredit, now - *opened_);
}

void SessionTiming::OnCommitted(TimePoint now) {
  if (committed_) return;
  committed_ = now;
  if (first_token_) Set(Stage::kCommit, std::max(Duration(0), now - *first_token_));
}

void SessionTiming::OnFirstTokens(const v1::FirstTokens& first, bool again, TimePoint now) {
  if (again) {
    recomputed_tokens_ += first.computed_tokens();
  }
  if (first_token_) return;
  first_token_ = now;
  cached_tokens_ = first.cached_tokens();
  pinned_tokens_ = first.pinned_tokens();
  evicted_tokens_ = first.evicted_tokens();
  if (first.has_blend()) blend_ = first.blend();
  Put(report_.mutable_queue(), FromMs(first.queue_ms()));
  Put(report_.mutable_prefill(), FromMs(first.prefill_ms()));
  Set(Stage::kQueue, FromMs(first.queue_ms()));
  Set(Stage::kPrefill, FromMs(first.prefill_ms()));
}

void SessionTiming::ReportBlend(v1::Usage& usage) const {
  if (!blend_) return;
  v1::BlendUsage& blend = *usage.mutable_blend();
  blend.set_reused_tokens(blend_->reused_tokens());
  blend.set_recomputed_tokens(blend_->recomputed_tokens());
  blend.set_fallback_tokens(blend_->fallback_tokens());
  blend.set_filled_tokens(blend_->filled_tokens());
  blend.set_deviation(blend_->deviation());
}

void SessionTiming::OnHandoff(const v1::HandoffDone& handoff) {
  Put(report_.mutable_kv_transfer(), FromMs(handoff.exposed_ms()));
  Set(Stage::kExposed, FromMs(handoff.exposed_ms()));
  report_.set_kv_bytes_moved(report_.kv_bytes_moved() + handoff.kv_bytes());
  report_.set_layers(handoff.layers());
  report_.set_layers_overlapped(handoff.layers_overlapped());
  report_.set_transport(handoff.transport());
  std::set<std::string> codecs(report_.kv_codecs().begin(), report_.kv_codecs().end());
  codecs.insert(handoff.codecs().begin(), handoff.codecs().end());
  report_.mutable_kv_codecs()->Assign(codecs.begin(), codecs.end());
}

void SessionTiming::OnGuesses(const v1::TokenOut& token) {
  if (token.more_in_step() > 0) ++accepted_guesses_;
  rejected_guesses_ += token.rejected_guesses();
}

void SessionTiming::OnAttention(const v1::TokenOut& token) {
  attended_[token.choice()] = token.attended_tokens();
  report_.set_kv_bytes_read(report_.kv_bytes_read() + token.kv_bytes_read());
}

uint32_t SessionTiming::attended_tokens() const {
  uint32_t most = 0;
  for (const auto& [choice, tokens] : attended_) most = std::max(most, tokens);
  return most;
}

void SessionTiming::OnToken(TimePoint now) {
  if (committed_ && first_token_ && now > *first_token_) {
    Set(Stage::kFirstDecode, now - std::max(*committed_, *first_token_));
  }
  if (!migrations_.empty() && !migrations_.back().gap && last_token_ != TimePoint()) {
    migrations_.back().gap = now - migrations_.back().at;
  }
  last_token_ = now;
}

void SessionTiming::OnSent(TimePoint now) {
  if (first_sent_) return;
  first_sent_ = now;
  if (first_token_) Set(Stage::kWrite, now - *first_token_);
}

google::protobuf::Duration SessionTiming::FirstTokenAfterPlan() const {
  google::protobuf::Duration after;
  if (opened_ && first_token_) Put(&after, *first_token_ - *opened_);
  return after;
}

std::vector<StageSpan> SessionTiming::Timeline() const {
  std::vector<StageSpan> spans;
  const auto add = [&](const char* name, TimePoint start, TimePoint end, std::string worker = {}) {
    spans.push_back({.name = name, .start = start, .end = end, .worker = std::move(worker)});
  };
  const auto add_stage = [&](const char* name, Stage stage, TimePoint start,
                             const std::string& worker = {}) {
    const std::optional<Duration>& took = stages_[static_cast<size_t>(stage)];
    if (took) add(name, start, start + *took, worker);
  };
  if (started_ != TimePoint()) add("tokenize", received_, started_);
  if (opened_) {
    add_stage("route", Stage::kRoute, started_);
    add_stage("credit", Stage::kCredit, *opened_, decode_worker_);
  }
  if (first_token_) {
    const TimePoint prefill = *first_token_ - Of(Stage::kPrefill);
    const TimePoint queue = prefill - Of(Stage::kQueue);
    add_stage("queue", Stage::kQueue, queue, prefill_worker_);
    add_stage("prefill", Stage::kPrefill, prefill, prefill_worker_);
    add_stage("exposed", Stage::kExposed, *first_token_, prefill_worker_);
    add_stage("commit", Stage::kCommit, *first_token_, decode_worker_);
    add_stage("write", Stage::kWrite, *first_token_);
    add_stage("first_decode", Stage::kFirstDecode,
              std::max(committed_.value_or(*first_token_), *first_token_), decode_worker_);
    add("decode", *first_token_, last_token_, report_.decode_worker());
  }
  for (const Migration& migration : migrations_) {
    spans.push_back({.name = "migration",
                     .start = migration.at,
                     .end = migration.at + migration.gap.value_or(Duration(0)),
                     .reason = migration.reason});
  }
  std::stable_sort(spans.begin(), spans.end(),
                   [](const StageSpan& a, const StageSpan& b) { return a.start < b.start; });
  return spans;
}

v1::Timing SessionTiming::Report() const {
  v1::Timing report = report_;
  report.set_migrations(static_cast<uint32_t>(migrations_.size()));
  if (!first_token_ || !opened_) return report;
  const TimePoint sent = first_sent_.value_or(*first_token_);
  Put(report.mutable_first_token(), sent - received_);
  Put(report.mutable_decode(), last_token_ - *first_token_);
  Put(report.mutable_router(), (*opened_ - received_) + (sent - *first_token_));
  return report;
}

}  // namespace penstock
