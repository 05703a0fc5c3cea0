#include "router/trace/request_spans.h"

#include <absl/strings/escaping.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

namespace penstock {
namespace {

using std::chrono::milliseconds;

TimePoint At(int ms) { return TimePoint(milliseconds(ms)); }

// A request that was received at 1,000 ms, whose first worker computed 20 ms of prompt.
SessionTiming TimingOfOne() {
  SessionTiming timing(At(1000), 12);
  timing.OnStarted(At(1002));
  timing.OnOpened("prefill-0", "decode-0", At(1003));
  timing.OnAdmitted(At(1005));
  v1::FirstTokens first;
  first.set_queue_ms(4);
  first.set_prefill_ms(20);
  first.set_cached_tokens(8);
  timing.OnFirstTokens(first, false, At(1030));
  timing.OnSent(At(1031));
  timing.OnCommitted(At(1033));
  timing.OnToken(At(1030));
  timing.OnToken(At(1040));
  return timing;
}

const TraceContext kTrace = {.trace_id = "0af7651916cd43dd8448eb211c80319c",
                             .span_id = "b7ad6b7169203331",
                             .parent_id = "00f067aa0ba902b7",
                             .flags = kTraceSampled,
                             .state = "vendor=1"};

class RequestSpansTest : public testing::Test {
 protected:
  // The steady clock's 2,000 ms are the wall clock's 1,000 s.
  const otlp::ScopeSpans& SpansOf(const SessionTiming& timing,
                                  const absl::Status& status = absl::OkStatus()) {
    AddSpans({.endpoint = Endpoint::kChat,
              .request_id = "req-1",
              .trace = kTrace,
              .status = status,
              .timing = timing,
              .output_tokens = 2,
              .end = At(1050)},
             "tiny", {.steady = At(2000), .unix_nanos = 1'000'000'000'000}, spans_);
    for (const otlp::Span& span : spans_.spans()) by_name_[span.name()] = &span;
    return spans_;
  }

  // Milliseconds since the request's receipt.
  std::pair<int64_t, int64_t> TimesOf(const std::string& name) const {
    const auto received = int64_t{999'000'000'000};
    const otlp::Span& span = *by_name_.at(name);
    return {(static_cast<int64_t>(span.start_time_unix_nano()) - received) / 1'000'000,
            (static_cast<int64_t>(span.end_time_unix_nano()) - received) / 1'000'000};
  }

  static std::string AttributeOf(const otlp::Span& span, const std::string& key) {
    for (const otlp::KeyValue& attribute : span.attributes()) {
      if (attribute.key() != key) continue;
      const otlp::AnyValue& value = attribute.value();
      return value.has_int_value() ? std::to_string(value.int_value()) : value.string_value();
    }
    return "";
  }

  otlp::ScopeSpans spans_;
  std::map<std::string, const otlp::Span*> by_name_;
};

TEST_F(RequestSpansTest, EachStageHasItsTime) {
  SpansOf(TimingOfOne());
  using Times = std::pair<int64_t, int64_t>;
  EXPECT_EQ(TimesOf("chat tiny"), Times(0, 50));
  EXPECT_EQ(TimesOf("tokenize"), Times(0, 2));
  EXPECT_EQ(TimesOf("route"), Times(2, 3));
  EXPECT_EQ(TimesOf("credit"), Times(3, 5));
  EXPECT_EQ(TimesOf("queue"), Times(6, 10));
  EXPECT_EQ(TimesOf("prefill"), Times(10, 30));
  EXPECT_EQ(TimesOf("commit"), Times(30, 33));
  EXPECT_EQ(TimesOf("write"), Times(30, 31));
  EXPECT_EQ(TimesOf("first_decode"), Times(33, 40));
  EXPECT_EQ(TimesOf("decode"), Times(30, 40));
  EXPECT_EQ(spans_.spans_size(), 10);
}

TEST_F(RequestSpansTest, StagesAreBelowTheRequestAndTheRequestBelowItsCaller) {
  const otlp::ScopeSpans& spans = SpansOf(TimingOfOne());
  std::set<std::string> ids;
  for (const otlp::Span& span : spans.spans()) {
    EXPECT_EQ(absl::BytesToHexString(span.trace_id()), kTrace.trace_id);
    EXPECT_EQ(span.trace_state(), "vendor=1");
    EXPECT_EQ(span.span_id().size(), 8u);
    EXPECT_TRUE(ids.insert(span.span_id()).second);
    const bool root = span.name() == "chat tiny";
    EXPECT_EQ(absl::BytesToHexString(span.parent_span_id()),
              root ? kTrace.parent_id : kTrace.span_id);
    EXPECT_EQ(span.kind(), root ? otlp::Span::KIND_SERVER : otlp::Span::KIND_INTERNAL);
  }
  EXPECT_EQ(absl::BytesToHexString(by_name_["chat tiny"]->span_id()), kTrace.span_id);
}

TEST_F(RequestSpansTest, AttributesHaveTheNamesOfTheConventions) {
  SpansOf(TimingOfOne());
  const otlp::Span& request = *by_name_["chat tiny"];
  EXPECT_EQ(AttributeOf(request, "gen_ai.operation.name"), "chat");
  EXPECT_EQ(AttributeOf(request, "gen_ai.request.model"), "tiny");
  EXPECT_EQ(AttributeOf(request, "gen_ai.response.id"), "req-1");
  EXPECT_EQ(AttributeOf(request, "gen_ai.usage.input_tokens"), "12");
  EXPECT_EQ(AttributeOf(request, "gen_ai.usage.output_tokens"), "2");
  EXPECT_EQ(AttributeOf(request, "penstock.cached_tokens"), "8");
  EXPECT_EQ(AttributeOf(request, "penstock.decode_worker"), "decode-0");
  EXPECT_EQ(request.status().code(), otlp::Span::Status::CODE_UNSET);
  EXPECT_EQ(AttributeOf(*by_name_["prefill"], "penstock.worker"), "prefill-0");
  EXPECT_EQ(AttributeOf(*by_name_["first_decode"], "penstock.worker"), "decode-0");
}

TEST_F(RequestSpansTest, AFailureAndAMigrationAreTold) {
  SessionTiming timing = TimingOfOne();
  timing.OnReplan(absl::UnavailableError("gone"), At(1041));
  timing.OnToken(At(1046));
  SpansOf(timing, absl::InternalError("no worker took it"));
  const otlp::Span& request = *by_name_["chat tiny"];
  EXPECT_EQ(request.status().code(), otlp::Span::Status::CODE_ERROR);
  EXPECT_EQ(request.status().message(), "no worker took it");
  EXPECT_EQ(AttributeOf(request, "error.type"), "INTERNAL");
  EXPECT_EQ(TimesOf("migration"), (std::pair<int64_t, int64_t>(41, 46)));
  EXPECT_EQ(AttributeOf(*by_name_["migration"], "penstock.migration.reason"), "worker_lost");
}

// One that was refused before it had workers.
TEST_F(RequestSpansTest, ARequestWithoutStagesIsOneSpan) {
  SpansOf(SessionTiming(At(1000), 3), absl::UnavailableError("no worker"));
  EXPECT_EQ(spans_.spans_size(), 1);
}

}  // namespace
}  // namespace penstock
