#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "lab/report/report.h"

namespace penstock {

struct PagingBenchOptions {
  std::string directory;  // of the file, on a disk; empty: that of temporary files
  int threads = 0;        // 0: every core
};

// Decoding with KV pages in a file, on a model of TinyLlama-1.1B's shape with random weights.
// `offload_decode_fraction`: the tokens in a second of a sequence of 32,768 tokens, each of which
// selects 1,024 (Quest), with memory for 8,192 of them, as a fraction of the same with memory for
// all. Both answer with the same tokens, or the bench fails. `offload_resident_token`: the time of
// a token there. `offload_miss_fraction`: the share of pages that a token wants and that are
// neither in memory nor being read because they were guessed. `offload_read_per_token`: the bytes
// that are read. Random keys and queries choose other pages for each token; a real model's choices
// change more slowly. Embeddings are so large that a layer changes the residual little, as in
// trained models, so that guesses of pages can be right.
absl::StatusOr<std::vector<BenchRow>> RunPagingBench(
    const PagingBenchOptions& options, const std::function<void(const std::string&)>& progress);

}  // namespace penstock
