#include "router/metrics/request_metrics.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

constexpr TimePoint kStart{};

TimePoint At(int ms) { return kStart + std::chrono::milliseconds(ms); }

class RequestMetricsTest : public ::testing::Test {
 protected:
  // An answer of two tokens, at 100 and 300 ms, to a prompt of 9.
  void Answer(const absl::Status& status, const std::string& trace_id, const std::string& tenant) {
    SessionTiming timing(kStart, 9);
    RequestMeter meter(metrics_, {.endpoint = Endpoint::kGenerate,
                                  .received = kStart,
                                  .trace_id = trace_id,
                                  .tenant = tenant});
    meter.OnShown(0, 1, At(100));
    meter.OnShown(0, 1, At(300));
    meter.OnFinished(status, timing, At(400));
  }
  // The sum of a counter's series that have this label.
  double Counted(const std::string& name, const std::string& label, const std::string& value) {
    double sum = 0;
    for (const auto& family : registry_.Collect()) {
      if (family.name != name) continue;
      for (const auto& metric : family.metric) {
        for (const auto& one : metric.label) {
          if (one.name == label && one.value == value) sum += metric.counter.value;
        }
      }
    }
    return sum;
  }

  MetricsRegistry registry_;
  RequestMetrics metrics_{registry_, {}, "tiny"};
};

TEST_F(RequestMetricsTest, ADeadlineThatPassedIsNoCancellation) {
  Answer(absl::DeadlineExceededError("too late"), "", "");
  Answer(absl::CancelledError("the client went away"), "", "");
  Answer(absl::OkStatus(), "", "");
  for (const char* status : {"timeout", "cancelled", "ok"}) {
    EXPECT_EQ(Counted("penstock_requests_total", "status", status), 1) << status;
  }
  EXPECT_EQ(Counted("penstock_requests_total", "status", "server_error"), 0);
}

TEST_F(RequestMetricsTest, TheTokensOfATenantAreItsOwn) {
  Answer(absl::OkStatus(), "", "acme");
  Answer(absl::CancelledError("the client went away"), "", "acme");
  Answer(absl::OkStatus(), "", "other");
  EXPECT_EQ(Counted("penstock_tenant_tokens_total", "tenant", "acme"), 2 * (9 + 2));
  EXPECT_EQ(Counted("penstock_tenant_tokens_total", "tenant", "other"), 9 + 2);
  EXPECT_EQ(Counted("penstock_tenant_requests_total", "tenant", "acme"), 2);
  EXPECT_EQ(Counted("penstock_tenant_tokens_total", "tenant", ""), 0);
}

TEST_F(RequestMetricsTest, ExemplarsNameTheTrace) {
  const std::string trace(32, 'b');
  Answer(absl::OkStatus(), trace, "");
  const auto exemplars = [&](const std::string& name, const MetricsRegistry::Labels& labels) {
    const TracedHistogram* const traced = registry_.FindTraced(name, labels);
    std::vector<double> values;
    for (size_t i = 0; i < traced->histogram().Collect().histogram.bucket.size(); ++i) {
      const auto exemplar = traced->exemplar(i);
      if (exemplar && exemplar->trace_id == trace) values.push_back(exemplar->value);
    }
    return values;
  };
  EXPECT_EQ(exemplars("penstock_time_to_first_token_seconds", {}), std::vector<double>{0.1});
  EXPECT_EQ(exemplars("penstock_inter_token_latency_seconds", {}), std::vector<double>{0.2});
  EXPECT_EQ(exemplars("penstock_request_duration_seconds", {{"status", "ok"}}),
            std::vector<double>{0.4});
}

TEST_F(RequestMetricsTest, TheLastRequestsAreKeptNewestFirst) {
  for (size_t i = 0; i < FinishedRequests::kMax; ++i) Answer(absl::OkStatus(), "", "acme");
  Answer(absl::DeadlineExceededError("too late"), "00ff", "other");
  EXPECT_EQ(metrics_.finished().Latest(std::nullopt, 1000).size(), FinishedRequests::kMax);
  EXPECT_EQ(metrics_.finished().Latest("acme", 1000).size(), FinishedRequests::kMax - 1);
  EXPECT_TRUE(metrics_.finished().Latest("nobody", 1000).empty());
  const auto latest = metrics_.finished().Latest(std::nullopt, 2);
  ASSERT_EQ(latest.size(), 2u);
  EXPECT_EQ(latest[0].number, FinishedRequests::kMax + 1);
  EXPECT_EQ(latest[0].status, "timeout");
  EXPECT_EQ(latest[0].endpoint, "generate");
  EXPECT_EQ(latest[0].trace_id, "00ff");
  EXPECT_EQ(latest[0].output_tokens, 2u);
  EXPECT_EQ(latest[0].first_token, std::chrono::milliseconds(100));
  EXPECT_EQ(latest[0].end, At(400));
  EXPECT_EQ(latest[1].tenant, "acme");
}

TEST_F(RequestMetricsTest, TotalsSayWhoMetTheTargets) {
  Answer(absl::OkStatus(), "", "");  // 200 ms a token, twice the target
  Answer(absl::DeadlineExceededError("too late"), "", "");
  metrics_.CountRefusal(absl::ResourceExhaustedError("full"));
  const RequestMetrics::Totals totals = metrics_.totals();
  EXPECT_EQ(totals.succeeded, 1u);
  EXPECT_EQ(totals.in_time, 0u);
  EXPECT_EQ(totals.first_late, 0u);
  EXPECT_EQ(totals.tokens_slow, 1u);
  EXPECT_EQ(totals.failed, 1u);
  EXPECT_EQ(totals.refused_by, (std::map<std::string, uint64_t>{{"other", 1}}));
}

}  // namespace
}  // namespace penstock
