#pragma once

#include <prometheus/histogram.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"

namespace penstock {

// An observed value and the trace of its request: an exemplar of OpenMetrics 1.0.
struct Exemplar {
  double value = 0;
  std::string trace_id;        // 32 lower-case hex digits
  int64_t observed_at_ms = 0;  // since 1970

  bool operator==(const Exemplar&) const = default;
};

// A histogram that remembers the newest observation with a trace in each bucket. Any thread.
class TracedHistogram {
 public:
  // `bounds` are those of `histogram`, which outlives this object.
  TracedHistogram(prometheus::Histogram& histogram, std::vector<double> bounds);

  // Leaves no exemplar if `trace_id` is empty.
  void Observe(double value, const std::string& trace_id) EXCLUDES(mutex_);

  // The exemplar of the bucket that ends at bounds[bucket], or at infinity after the last bound.
  // Nullopt if the bucket has none.
  std::optional<Exemplar> exemplar(size_t bucket) const EXCLUDES(mutex_);
  const prometheus::Histogram& histogram() const { return histogram_; }

 private:
  prometheus::Histogram& histogram_;
  const std::vector<double> bounds_;
  mutable Mutex mutex_;
  std::vector<Exemplar> exemplars_ GUARDED_BY(mutex_);  // by bucket; without a trace_id: none
};

}  // namespace penstock
