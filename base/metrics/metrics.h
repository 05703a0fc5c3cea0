#pragma once

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/metrics/traced_histogram.h"
#include "base/status.h"

namespace penstock {

// Sets a counter to a value that another part counts, which is at least its present one.
template <class Number>
void RaiseTo(prometheus::Counter& counter, Number value) {
  counter.Increment(static_cast<double>(value) - counter.Value());
}

// The metrics of a process for Prometheus. Each component has a struct of references, which its
// constructor obtains from the registry, so that every series exists, at zero, from the start:
//   struct StoreMetrics {
//     explicit StoreMetrics(MetricsRegistry& registry);
//     prometheus::Counter& hits;
//   };
// Names are penstock_*, counters end in _total, times are in seconds and sizes in bytes. The values
// of a label come from a closed list, never from a client. The registry is thread-safe and outlives
// all references.
//
// This room, base/metrics, registers metrics. It may use base/ and base/log only. It
// does not know what other rooms count.
class MetricsRegistry {
 public:
  using Labels = std::map<std::string, std::string>;

  MetricsRegistry();

  // A name has one help text; its series differ in labels. References stay valid as long as the
  // registry.
  prometheus::Counter& Counter(const std::string& name, const std::string& help,
                               const Labels& labels = {});
  prometheus::Gauge& Gauge(const std::string& name, const std::string& help,
                           const Labels& labels = {});
  prometheus::Histogram& Histogram(const std::string& name, const std::string& help,
                                   const std::vector<double>& buckets, const Labels& labels = {});
  // A histogram with exemplars.
  TracedHistogram& Traced(const std::string& name, const std::string& help,
                          const std::vector<double>& buckets, const Labels& labels = {});
  // Null if that series is no traced histogram.
  const TracedHistogram* FindTraced(const std::string& name, const Labels& labels) const;

  // Calls `refresh` before each scrape, to set gauges that are computed on demand. It runs on a
  // thread of the server; its captures must outlive the server of this registry.
  void BeforeScrape(std::function<void()> refresh);

  // Returns what a scrape returns.
  std::vector<prometheus::MetricFamily> Collect() const;
  std::shared_ptr<prometheus::Collectable> collectable() const;

 private:
  class Source;
  std::shared_ptr<Source> source_;
};

// Bucket bounds in seconds, 2x to 2.5x apart; dashboards interpolate quantiles within a bucket.
std::vector<double> LatencyBuckets();  // 100 us to 60 s: requests and their stages
std::vector<double> StepBuckets();     // 10 us to 10 s: engine steps, I/O, slabs

// Adds build_info, and resident memory, open descriptors, CPU time and start time of this process.
void AddProcessMetrics(MetricsRegistry& registry, const std::string& role);

}  // namespace penstock
