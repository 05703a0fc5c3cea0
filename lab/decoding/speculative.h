#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "lab/report/report.h"

namespace penstock {

struct SpeculativeBenchOptions {
  std::string model = "models/penstock-tiny";  // its tokenizer cuts `text` into tokens
  std::string text = "models/text/held_out.txt";
  int threads = 0;  // 0: every core
  int rounds = 2;   // of which the best counts
};

// The decode engine with and without guesses, on a model of TinyLlama-1.1B's shape with random
// weights. The models compute every row, and then the answer's tokens are given. Values are tokens
// per second with guesses over those without.
// `ngram_speedup_b1` is of an answer that repeats a passage of its prompt with every 24th token
// changed, and `worst_change` the worst of batches 1 to 16 whose answers go on with a text as it
// is.
// `draft_model_speedup_b1` is of a draft model of a tenth of the size that guesses 70 % of the
// tokens right, its computation of the prompt included; `draft_model_int4_speedup_b1` of one with
// weights of four bits. `bad_draft_model_change_b1`, `b4` and `b16` are the first answers of a
// worker whose draft model guesses 10 % right, `draft_model_first_change_b4` those with 70 %, and
// `worse_draft_model_change_b1` follows guesses of which 70 % were right, and has 10 %.
// `mtp_speedup_b1` is of a model with a layer for multi-token prediction that guesses 70 % right,
// `bad_mtp_change_b1` of one with 10 %. Both are over the same model without guesses.
absl::StatusOr<std::vector<BenchRow>> RunSpeculativeBench(
    const SpeculativeBenchOptions& options,
    const std::function<void(const std::string&)>& progress);

}  // namespace penstock
