#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "lab/report/report.h"

namespace penstock {

struct StructuredBenchOptions {
  std::string model = "models/penstock-tiny";
  int threads = 0;    // of the forward pass; 0: every core
  int steps = 200;    // of decoding
  int sequences = 8;  // in a step
};

// The cost of structured output with the model's own vocabulary: `schema_compile_ms_p90` of a
// hundred ordinary schemas, from the client's text to the grammar's compiled form; `mask_us_p50`
// and `mask_us_p99`; and, of decode steps in which all sequences have a schema, `mask_late_share`
// of the masks for which the sampler waited, and `itl_change_structured`: the change of the time of
// a step (0.05: five percent longer). `fraction` is of the goal.
absl::StatusOr<std::vector<BenchRow>> RunStructuredBench(
    const StructuredBenchOptions& options, const std::function<void(const std::string&)>& progress);

}  // namespace penstock
