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

#include "base/status.h"

namespace prometheus {
class Exposer;
}

namespace penstock {

// What a process tells Prometheus. A part that counts has a struct of references that it makes from
// the registry in its constructor, so that every series is there, at zero, from the start:
//   struct StoreMetrics {
//     explicit StoreMetrics(MetricsRegistry& registry);
//     prometheus::Counter& hits;
//   };
// Names are penstock_*, counters end in _total, times are in seconds and sizes in bytes. A label's
// values come from a closed list, never from a client.
class MetricsRegistry {
 public:
  using Labels = std::map<std::string, std::string>;

  MetricsRegistry();

  // A name has one help text; its series differ in labels. The references live as long as this.
  prometheus::Counter& Counter(const std::string& name, const std::string& help,
                               const Labels& labels = {});
  prometheus::Gauge& Gauge(const std::string& name, const std::string& help,
                           const Labels& labels = {});
  prometheus::Histogram& Histogram(const std::string& name, const std::string& help,
                                   const std::vector<double>& buckets, const Labels& labels = {});

  // Runs before each scrape, to set gauges that are cheaper to read than to keep. Any thread; what
  // it captures outlives the server of this registry.
  void BeforeScrape(std::function<void()> refresh);

  // What a scrape shows.
  std::vector<prometheus::MetricFamily> Collect() const;
  std::shared_ptr<prometheus::Collectable> collectable() const;

 private:
  class Source;
  std::shared_ptr<Source> source_;
};

// Bounds in seconds. Steps are 2x to 2.5x, which a dashboard's quantiles are interpolated in.
std::vector<double> LatencyBuckets();  // 100 us to 60 s: requests and their stages
std::vector<double> StepBuckets();     // 10 us to 10 s: engine steps, I/O, slabs

// build_info, and resident memory, descriptors, processor time and start time of this process.
void AddProcessMetrics(MetricsRegistry& registry, const std::string& role);

// Serves /metrics over HTTP, read only. Its own threads.
class MetricsServer {
 public:
  // `listen` is host:port; port 0 takes a free one. RESOURCE_EXHAUSTED when it cannot be bound.
  // `registry` outlives the server.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const std::string& listen,
                                                              const MetricsRegistry& registry);
  ~MetricsServer();

  const std::string& endpoint() const { return endpoint_; }

 private:
  MetricsServer(std::unique_ptr<prometheus::Exposer> exposer, std::string endpoint);
  std::unique_ptr<prometheus::Exposer> exposer_;
  std::string endpoint_;
};

}  // namespace penstock
