#include "base/metrics/metrics.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/metrics/open_metrics.h"

namespace penstock {
namespace {

TEST(Metrics, RefreshesBeforeEachScrape) {
  MetricsRegistry registry;
  prometheus::Gauge& gauge = registry.Gauge("penstock_scrapes", "Scrapes so far.");
  registry.BeforeScrape([&gauge] { gauge.Increment(); });
  registry.Collect();
  EXPECT_EQ(gauge.Value(), 1);
  registry.Collect();
  EXPECT_EQ(gauge.Value(), 2);
}

constexpr char kTrace[] = "0af7651916cd43dd8448eb211c80319c";

TEST(OpenMetrics, FamiliesHaveTheTextThatTheSpecificationGives) {
  MetricsRegistry registry;
  registry.Counter("penstock_things_total", "Things \"big\"\nand small.", {{"kind", "a\\b"}})
      .Increment(3);
  registry.Gauge("penstock_level_ratio", "Level.").Set(0.25);
  registry.Gauge("penstock_top", "Top.").Set(std::numeric_limits<double>::infinity());
  const std::string text = OpenMetricsText(registry);
  EXPECT_THAT(text, testing::HasSubstr("# HELP penstock_things Things \\\"big\\\"\\nand small.\n"
                                       "# TYPE penstock_things counter\n"
                                       "penstock_things_total{kind=\"a\\\\b\"} 3\n"));
  EXPECT_THAT(text, testing::HasSubstr("# TYPE penstock_level_ratio gauge\n"
                                       "penstock_level_ratio 0.25\n"));
  EXPECT_THAT(text, testing::HasSubstr("penstock_top +Inf\n"));
  EXPECT_THAT(text, testing::EndsWith("\n# EOF\n"));
}

TEST(OpenMetrics, TheNewestObservationOfABucketIsItsExemplar) {
  MetricsRegistry registry;
  TracedHistogram& histogram =
      registry.Traced("penstock_wait_seconds", "Wait.", {0.001, 2.5, 10, 1e6}, {{"role", "a"}});
  histogram.Observe(0.001, "");  // in the first bucket, whose bound belongs to it
  histogram.Observe(2, "00000000000000000000000000000001");
  histogram.Observe(2.5, kTrace);
  histogram.Observe(7e6, kTrace);
  EXPECT_EQ(histogram.exemplar(0), std::nullopt);
  ASSERT_TRUE(histogram.exemplar(1));
  EXPECT_EQ(histogram.exemplar(1)->trace_id, kTrace);
  EXPECT_EQ(histogram.exemplar(1)->value, 2.5);
  const auto at = [&](size_t bucket) {
    const int64_t ms = histogram.exemplar(bucket)->observed_at_ms;
    return fmt::format("{}.{:03}", ms / 1000, ms % 1000);
  };
  EXPECT_THAT(
      OpenMetricsText(registry),
      testing::HasSubstr("# TYPE penstock_wait_seconds histogram\n"
                         "penstock_wait_seconds_bucket{role=\"a\",le=\"0.001\"} 1\n"
                         "penstock_wait_seconds_bucket{role=\"a\",le=\"2.5\"} 3 # {trace_id=\"" +
                         std::string(kTrace) + "\"} 2.5 " + at(1) +
                         "\npenstock_wait_seconds_bucket{role=\"a\",le=\"10.0\"} 3\n"
                         "penstock_wait_seconds_bucket{role=\"a\",le=\"1e+06\"} 3\n"
                         "penstock_wait_seconds_bucket{role=\"a\",le=\"+Inf\"} 4 # {trace_id=\"" +
                         std::string(kTrace) + "\"} 7000000 " + at(4) +
                         "\npenstock_wait_seconds_count{role=\"a\"} 4\n"
                         "penstock_wait_seconds_sum{role=\"a\"} 7000004.501\n"));
  EXPECT_EQ(registry.FindTraced("penstock_wait_seconds", {}), nullptr);
}

TEST(OpenMetrics, IsForScrapersThatPreferIt) {
  // Prometheus 2.42 and 3.0.
  EXPECT_TRUE(
      PrefersOpenMetrics("application/openmetrics-text;version=1.0.0,"
                         "application/openmetrics-text;version=0.0.1;q=0.75,"
                         "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"));
  EXPECT_TRUE(
      PrefersOpenMetrics("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;"
                         "q=0.6,text/plain;version=0.0.4;q=0.4,*/*;q=0.1"));
  EXPECT_TRUE(PrefersOpenMetrics("Application/OpenMetrics-Text"));
  EXPECT_FALSE(PrefersOpenMetrics("application/openmetrics-text; version=0.0.1"));
  EXPECT_FALSE(PrefersOpenMetrics("application/openmetrics-text;q=0, */*"));
  EXPECT_FALSE(PrefersOpenMetrics("application/openmetrics-text;q=much"));
  EXPECT_FALSE(PrefersOpenMetrics("application/openmetrics-text;q=0.2,text/plain"));
  EXPECT_FALSE(PrefersOpenMetrics("*/*"));
  EXPECT_FALSE(PrefersOpenMetrics(""));
}

}  // namespace
}  // namespace penstock
