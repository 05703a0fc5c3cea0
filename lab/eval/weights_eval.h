#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lab/eval/kv_eval.h"

namespace penstock {

// The effect of rounding a model's matrices (WeightPolicy), paired with the checkpoint's own on the
// same tokens.
struct WeightsQuality {
  std::string weights;         // the policy's name
  std::string form;            // Weights::FormName
  double bits_per_weight = 0;  // of the matrices, scales included
  double perplexity = 0;       // of the continuations
  Estimate perplexity_change;  // relative
  Estimate divergence;         // KL(checkpoint || rounded) of the next token, in nats
  double divergence_p99 = 0;
  Estimate top1_agreement;  // share of positions with the same first choice
};

struct WeightsEvalReport {
  KvEvalOptions options;
  int64_t tokens = 0;  // scored
  std::vector<WeightsQuality> rows;
};

// Scores `continuation` tokens behind `context` tokens of each window with the checkpoint's weights
// and with each rounded form. Uses model, text, windows, seeds, context, continuation and threads
// of `options`. INVALID_ARGUMENT if the text or the model's context is too short, or the checkpoint
// is quantised already.
absl::StatusOr<WeightsEvalReport> RunWeightsEval(
    const KvEvalOptions& options, const std::function<void(const std::string&)>& progress);

std::string ToJson(const WeightsEvalReport& report);
std::string ToText(const WeightsEvalReport& report);

}  // namespace penstock
