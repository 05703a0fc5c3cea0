#include "router/session_timing.h"

namespace penstock {
namespace {

void Set(google::protobuf::Duration* target, Duration value) {
  target->set_seconds(value.count() / 1'000'000'000);
  target->set_nanos(static_cast<int32_t>(value.count() % 1'000'000'000));
}

Duration FromMs(double ms) { return Duration(static_cast<int64_t>(ms * 1e6)); }

}  // namespace

void SessionTiming::OnOpened(const std::string& prefill_worker, const std::string& decode_worker,
                             TimePoint now) {
  if (!opened_) opened_ = now;
  report_.set_prefill_worker(prefill_worker);
  report_.set_decode_worker(decode_worker);
}

void SessionTiming::OnFirstTokens(const v1::FirstTokens& first, bool again, TimePoint now) {
  if (again) {
    recomputed_tokens_ += first.computed_tokens();
  }
  if (first_token_) return;
  first_token_ = now;
  Set(report_.mutable_queue(), FromMs(first.queue_ms()));
  Set(report_.mutable_prefill(), FromMs(first.prefill_ms()));
}

void SessionTiming::OnHandoff(const v1::HandoffDone& handoff) {
  Set(report_.mutable_kv_transfer(), FromMs(handoff.exposed_ms()));
  report_.set_kv_bytes_moved(report_.kv_bytes_moved() + handoff.kv_bytes());
  report_.set_layers(handoff.layers());
  report_.set_layers_overlapped(handoff.layers_overlapped());
  report_.set_transport(handoff.transport());
}

void SessionTiming::OnSent(TimePoint now) {
  if (!first_sent_) first_sent_ = now;
}

google::protobuf::Duration SessionTiming::FirstTokenAfterPlan() const {
  google::protobuf::Duration after;
  if (opened_ && first_token_) Set(&after, *first_token_ - *opened_);
  return after;
}

v1::Timing SessionTiming::Report() const {
  v1::Timing report = report_;
  report.set_migrations(migrations_);
  if (!first_token_ || !opened_) return report;
  const TimePoint sent = first_sent_.value_or(*first_token_);
  Set(report.mutable_first_token(), sent - received_);
  Set(report.mutable_decode(), last_token_ - *first_token_);
  Set(report.mutable_router(), (*opened_ - received_) + (sent - *first_token_));
  return report;
}

}  // namespace penstock
