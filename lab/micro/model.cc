#include "lab/micro/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

#include "kernels/cpu/thread_pool.h"
#include "lab/micro/kernels_limits.h"
#include "lab/micro/kernels_model.h"
#include "model/forward/transformer_runner.h"
#include "model/load/load_model.h"

namespace penstock {
namespace {

constexpr int32_t kPrompt = 512;
constexpr int32_t kAnswer = 128;

// A model with pages for one sequence of kPrompt tokens. One thread.
class LoneSequence {
 public:
  LoneSequence(const Weights& weights, const Exec& exec)
      : runner_(weights, exec, kPrompt),
        blocks_(static_cast<size_t>(runner_.kv_layout().BlocksFor(kPrompt))),
        pages_(blocks_.size() * runner_.kv_layout().BlockStride()),
        kv_{pages_.as<std::byte>(), std::ssize(blocks_), runner_.kv_layout()},
        tokens_(kPrompt),
        logits_(static_cast<size_t>(runner_.vocab())) {
    std::iota(blocks_.begin(), blocks_.end(), 0u);
    for (size_t i = 0; i < tokens_.size(); ++i) {
      tokens_[i] = static_cast<uint32_t>(i * 7919 % logits_.size());
    }
  }

  absl::Status Prefill() { return Step(0, kPrompt); }
  absl::Status Decode() {
    for (int32_t position = 0; position < kAnswer; ++position) {
      RETURN_IF_ERROR(Step(position, 1));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Step(int32_t position, int32_t count) {
    const SequenceStep step{
        .tokens = std::span(tokens_).subspan(static_cast<size_t>(position), count),
        .position = position,
        .blocks = blocks_,
        .wants_logits = true};
    return runner_.Step(
        {.sequences = {&step, 1}, .kv = kv_, .logits = {logits_.data(), {1, runner_.vocab()}}});
  }

  TransformerRunner runner_;
  std::vector<uint32_t> blocks_;
  const Buffer pages_;
  const PagedKv kv_;
  std::vector<uint32_t> tokens_;
  std::vector<float> logits_;
};

// Rates of all rounds, and the best bandwidth.
struct Rounds {
  std::vector<double> prefill, decode;  // tokens/s
  double bandwidth = 0;
};

// Returns the tokens per second of `run`, which computes `tokens`.
absl::StatusOr<double> Rate(int32_t tokens, const auto& run) {
  const auto start = std::chrono::steady_clock::now();
  RETURN_IF_ERROR(run());
  return tokens / std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

absl::Status RunRound(LoneSequence& sequence, const MachineLimits& limits, Rounds& rounds) {
  rounds.bandwidth = std::max(rounds.bandwidth, limits.ReadBandwidth());
  ASSIGN_OR_RETURN(const double prefill, Rate(kPrompt, [&] { return sequence.Prefill(); }));
  ASSIGN_OR_RETURN(const double decode, Rate(kAnswer, [&] { return sequence.Decode(); }));
  rounds.bandwidth = std::max(rounds.bandwidth, limits.ReadBandwidth());
  rounds.prefill.push_back(prefill);
  rounds.decode.push_back(decode);
  return absl::OkStatus();
}

// The median of `rates`, the slowest and the fastest. `limit` 0: none.
void AddRates(const std::string& name, std::vector<double> rates, double limit,
              std::vector<BenchRow>& rows) {
  std::ranges::sort(rates);
  const double median = (rates[(rates.size() - 1) / 2] + rates[rates.size() / 2]) / 2;
  const auto add = [&](const std::string& suffix, double rate) {
    rows.push_back({name + suffix, rate, "tokens/s", limit, limit == 0 ? 0 : rate / limit});
  };
  add("", median);
  add("_min", rates.front());
  add("_max", rates.back());
}

std::vector<BenchRow> RowsOf(const Rounds& rounds, const Weights& weights, int threads) {
  const auto bytes = static_cast<double>(weights.step_bytes());
  std::vector<BenchRow> rows;
  AddRates(fmt::format("prefill_{}", kPrompt), rounds.prefill, 0, rows);
  AddRates(fmt::format("decode_{}", kAnswer), rounds.decode, rounds.bandwidth / bytes, rows);
  rows.push_back({.name = "read_bandwidth", .value = rounds.bandwidth / 1e9, .unit = "GB/s"});
  rows.push_back({.name = "weights", .value = bytes / 1e9, .unit = "GB"});
  rows.push_back({.name = "threads", .value = double{1} * threads, .unit = "threads"});
  return rows;
}

}  // namespace

absl::StatusOr<std::vector<BenchRow>> RunModelBench(
    const ModelBenchOptions& options, const std::function<void(const std::string&)>& progress) {
  progress(fmt::format("loading {}", options.model));
  ASSIGN_OR_RETURN(const LoadedModel model, LoadModel(options.model));
  const Weights& weights = model.weights;
  if (weights.config.max_position < kPrompt) {
    return InvalidArgument("{} takes {} tokens, the suite needs {}", options.model,
                           weights.config.max_position, kPrompt);
  }
  const int threads = options.threads > 0
                          ? options.threads
                          : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  ThreadPool pool(threads);
  const Exec exec{.threads = &pool};
  LoneSequence sequence(weights, exec);
  RETURN_IF_ERROR(sequence.Prefill());  // touches scratch and pages
  const MachineLimits limits(exec, MatrixMemory(weights));
  Rounds rounds;
  for (int round = 0; round < options.rounds; ++round) {
    RETURN_IF_ERROR(RunRound(sequence, limits, rounds));
    progress(fmt::format("{}, round {} of {}: prefill {:.1f} tokens/s, decode {:.1f} tokens/s",
                         weights.MatricesName(), round + 1, options.rounds, rounds.prefill.back(),
                         rounds.decode.back()));
  }
  return RowsOf(rounds, weights, threads);
}

}  // namespace penstock
