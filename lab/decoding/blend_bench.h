#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "lab/report/report.h"

namespace penstock {

// The gain of re-using documents of a prompt, on a model of TinyLlama-1.1B's shape with random
// weights. `blend_ttft_fraction`: a prompt of four documents of 400 tokens and a question of 16, in
// another order than they were computed in, of which 15 % are computed again, over the full prefill
// of the same prompt: the time from its first step to its last logits, moves of KV included.
// `blend_kl_fraction`: with the model of `model`, whose weights are trained, the KL divergence of
// the next token behind such prompts of text from that of full prefill, over that of naive re-use,
// in which documents' KV stays as it is. `blend_kl`, and `moved_kl` (positions are corrected,
// and nothing is computed again) have the divergences, with that of naive re-use as the limit.
// `blend_deviation_max` is the greatest deviation of a document.
struct BlendBenchOptions {
  std::string model;  // a checkpoint's directory; empty: none
  std::string text;   // with a model, the file of the documents
  int threads = 0;    // 0: every core
  int rounds = 3;     // of which the best counts
};

absl::StatusOr<std::vector<BenchRow>> RunBlendBench(
    const BlendBenchOptions& options, const std::function<void(const std::string&)>& progress);

}  // namespace penstock
