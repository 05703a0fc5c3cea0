#include "base/metrics/metrics.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace penstock
