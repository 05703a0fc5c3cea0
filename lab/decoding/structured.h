#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "lab/report/report.h"

namespace penstock {

struct StructuredBenchOptions {
  std::string model = "models/penstock-tiny";
  // Tokens of a synthetic vocabulary (WriteVocabulary over `model` and `texts`) and of a random
  // model of TinyLlama-1.1B's shape with 4-bit weights. 0: measures `model` itself.
  uint32_t vocabulary = 0;
  std::vector<std::string> texts = {"models/text/held_out.txt", "models/text/calibration.txt"};
  int threads = 0;     // of the forward pass; 0: every core
  int steps = 100;     // of decoding
  int sequences = 16;  // in a step
};

// The cost of structured output: `schema_compile_ms_p90` of twenty ordinary schemas, from the
// client's text to the compiled form, and `schema_compile_warm_ms_p90` of the same again;
// `mask_us_p50` and `mask_us_p99`; `mask_late_share` of the masks for which the sampler waited in
// decode steps in which all sequences have a schema; and `itl_change_structured`, the change of the
// time of a step if half of the sequences have one (0.03: three percent longer). `fraction` is of
// the goal.
absl::StatusOr<std::vector<BenchRow>> RunStructuredBench(
    const StructuredBenchOptions& options, const std::function<void(const std::string&)>& progress);

}  // namespace penstock
