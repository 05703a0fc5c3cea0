#pragma once

#include <functional>
#include <string>

#include "base/status.h"
#include "lab/report/report.h"

namespace penstock {

struct BlendBenchOptions {
  int threads = 0;  // 0: every core
  int rounds = 3;   // of which the best counts
};

// The gain of re-using documents of a prompt, on a model of TinyLlama-1.1B's shape with random
// weights: `blend_ttft_fraction` is the time of a prompt of four documents of 400 tokens and a
// question of 16, in another order than they were computed in, of which 15 % are computed again,
// over the full prefill of the same prompt: from its first step to its last logits, moves of KV
// included. What it costs is measured by lab/eval.
absl::StatusOr<BenchRow> RunBlendBench(const BlendBenchOptions& options,
                                       const std::function<void(const std::string&)>& progress);

}  // namespace penstock
