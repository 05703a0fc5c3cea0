#include "base/metrics/metrics.h"

#include <utility>

#include "base/mutex.h"

namespace penstock {

class MetricsRegistry::Source final : public prometheus::Collectable {
 public:
  using Series = std::pair<std::string, Labels>;  // name and labels

  std::vector<prometheus::MetricFamily> Collect() const override {
    MutexLock lock(mutex_);
    for (const auto& refresh : refreshers_) refresh();
    return registry.Collect();
  }
  void Add(std::function<void()> refresh) {
    MutexLock lock(mutex_);
    refreshers_.push_back(std::move(refresh));
  }

  TracedHistogram& AddTraced(const Series& series, prometheus::Histogram& histogram,
                             const std::vector<double>& bounds) {
    MutexLock lock(mutex_);
    return traced_.try_emplace(series, histogram, bounds).first->second;
  }
  const TracedHistogram* FindTraced(const Series& series) const {
    MutexLock lock(mutex_);
    const auto found = traced_.find(series);
    return found == traced_.end() ? nullptr : &found->second;
  }

  prometheus::Registry registry;

 private:
  mutable Mutex mutex_;
  std::vector<std::function<void()>> refreshers_ GUARDED_BY(mutex_);
  std::map<Series, TracedHistogram> traced_ GUARDED_BY(mutex_);
};

MetricsRegistry::MetricsRegistry() : source_(std::make_shared<Source>()) {}

prometheus::Counter& MetricsRegistry::Counter(const std::string& name, const std::string& help,
                                              const Labels& labels) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(source_->registry).Add(labels);
}

prometheus::Gauge& MetricsRegistry::Gauge(const std::string& name, const std::string& help,
                                          const Labels& labels) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(source_->registry).Add(labels);
}

prometheus::Histogram& MetricsRegistry::Histogram(const std::string& name, const std::string& help,
                                                  const std::vector<double>& buckets,
                                                  const Labels& labels) {
  return prometheus::BuildHistogram()
      .Name(name)
      .Help(help)
      .Register(source_->registry)
      .Add(labels, buckets);
}

TracedHistogram& MetricsRegistry::Traced(const std::string& name, const std::string& help,
                                         const std::vector<double>& buckets, const Labels& labels) {
  return source_->AddTraced({name, labels}, Histogram(name, help, buckets, labels), buckets);
}

const TracedHistogram* MetricsRegistry::FindTraced(const std::string& name,
                                                   const Labels& labels) const {
  return source_->FindTraced({name, labels});
}

void MetricsRegistry::BeforeScrape(std::function<void()> refresh) {
  source_->Add(std::move(refresh));
}

std::vector<prometheus::MetricFamily> MetricsRegistry::Collect() const {
  return source_->Collect();
}

std::shared_ptr<prometheus::Collectable> MetricsRegistry::collectable() const { return source_; }

std::vector<double> LatencyBuckets() {
  return {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
          0.1,    0.25,    0.5,    1,     2.5,    5,     10,   30,    60};
}

std::vector<double> StepBuckets() {
  return {0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01,
          0.025,   0.05,     0.1,     0.25,   0.5,     1,      2.5,   5,      10};
}

}  // namespace penstock
