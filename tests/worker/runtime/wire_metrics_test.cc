#include "worker/runtime/wire_metrics.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

double Count(const MetricsRegistry& registry, const std::string& reason) {
  for (const prometheus::MetricFamily& family : registry.Collect()) {
    if (family.name != "penstock_wire_refused_total") continue;
    for (const prometheus::ClientMetric& metric : family.metric) {
      if (metric.label.at(0).value == reason) return metric.counter.value;
    }
  }
  return -1;
}

TEST(WireMetrics, CountsEachRefusalUnderItsReason) {
  MetricsRegistry registry;
  const OnWireRefusal refuse = CountRefusals(registry);
  const std::vector<std::pair<WireRefusal, std::string>> reasons = {
      {WireRefusal::kGreeting, "greeting"},
      {WireRefusal::kCertificate, "certificate"},
      {WireRefusal::kLimit, "limit"},
      {WireRefusal::kProtocol, "protocol"},
      {WireRefusal::kTag, "tag"}};
  ASSERT_EQ(reasons.size(), static_cast<size_t>(kWireRefusals));
  for (const auto& [refusal, reason] : reasons) {
    EXPECT_EQ(Count(registry, reason), 0) << reason;
    refuse(refusal);
    EXPECT_EQ(Count(registry, reason), 1) << reason;
  }
}

TEST(WireMetrics, WarnsOnceAMinuteThroughAllCopies) {
  MetricsRegistry registry;
  const OnWireRefusal refuse = CountRefusals(registry);
  testing::internal::CaptureStdout();  // where lines go before StartLogging
  for (int lane = 0; lane < 3; ++lane) {
    const OnWireRefusal own = refuse;
    own(WireRefusal::kTag);
  }
  const std::string log = testing::internal::GetCapturedStdout();
  const size_t first = log.find("wire_connection_refused");
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(log.find("wire_connection_refused", first + 1), std::string::npos);
  EXPECT_EQ(Count(registry, "tag"), 3);
}

}  // namespace
}  // namespace penstock
