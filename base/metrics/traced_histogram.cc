#include "base/metrics/traced_histogram.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace penstock {
namespace {

// Prometheus drops an exemplar that is not newer than the one before, so seconds are too coarse.
int64_t UnixMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

TracedHistogram::TracedHistogram(prometheus::Histogram& histogram, std::vector<double> bounds)
    : histogram_(histogram), bounds_(std::move(bounds)), exemplars_(bounds_.size() + 1) {}

void TracedHistogram::Observe(double value, const std::string& trace_id) {
  histogram_.Observe(value);
  if (trace_id.empty()) return;
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  MutexLock lock(mutex_);
  Exemplar& exemplar = exemplars_[static_cast<size_t>(bucket)];
  exemplar.value = value;
  exemplar.trace_id = trace_id;
  exemplar.observed_at_ms = UnixMs();
}

std::optional<Exemplar> TracedHistogram::exemplar(size_t bucket) const {
  MutexLock lock(mutex_);
  if (exemplars_.at(bucket).trace_id.empty()) return std::nullopt;
  return exemplars_[bucket];
}

}  // namespace penstock
