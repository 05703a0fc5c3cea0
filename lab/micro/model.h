#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "lab/report/report.h"

namespace penstock {

struct ModelBenchOptions {
  std::string model = "models/penstock-tiny";  // a checkpoint's directory or a GGUF file
  int threads = 0;                             // 0: every core
  int rounds = 3;                              // of which the median counts
};

// Measures the forward pass of a model as its files have it, for one sequence and without a server.
// Returns the errors of LoadModel, and INVALID_ARGUMENT if the model takes fewer than 512 tokens.
// Rows, of which the first two have the slowest and the fastest round beside them (_min, _max):
//   prefill_512     tokens/s of a prompt of 512 tokens in one step
//   decode_128      tokens/s of 128 steps of one token, the first of which has no context;
//                   limit: read bandwidth / bytes that a step reads (Weights::step_bytes)
//   read_bandwidth  GB/s of reading the matrices, the best of all rounds
//   weights         GB that a decode step reads
//   threads         threads that compute
absl::StatusOr<std::vector<BenchRow>> RunModelBench(
    const ModelBenchOptions& options, const std::function<void(const std::string&)>& progress);

}  // namespace penstock
