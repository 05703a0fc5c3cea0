#include "base/metrics/traced_histogram.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace penstock {

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
  exemplar.observed_at_s = UnixSeconds();
}

std::optional<Exemplar> TracedHistogram::exemplar(size_t bucket) const {
  MutexLock lock(mutex_);
  if (exemplars_.at(bucket).trace_id.empty()) return std::nullopt;
  return exemplars_[bucket];
}

}  // namespace penstock
