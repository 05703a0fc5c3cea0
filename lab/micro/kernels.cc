#include "lab/micro/kernels.h"

#include <algorithm>
#include <fstream>
#include <memory>
#include <thread>

#include "kernels/cpu/thread_pool.h"
#include "lab/micro/kernels_experts.h"
#include "lab/micro/kernels_limits.h"
#include "lab/micro/kernels_model.h"
#include "lab/micro/kernels_pages.h"
#include "lab/micro/kernels_weights.h"

namespace penstock {
namespace {

// Turns of every kind of decode step in a round. Some in a row, as in service; in turns, because a
// machine is not equally fast at all times.
constexpr int kDecodeTurns = 4;
constexpr int kStepsInARow = 4;
constexpr size_t kMemoryNeeded = size_t{6} << 30;

// A value in bytes of /proc/self/status or /proc/meminfo, 0 where there is none.
size_t ProcBytes(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key + ":", 0) == 0) return std::stoull(line.substr(key.size() + 1)) << 10;
  }
  return 0;
}

// The best of every figure over the rounds.
struct Best {
  double bandwidth = 0, peak = 0, multiply_add = 0;
  double decode1 = 1e9, decode8 = 1e9, decode_long = 1e9, attention = 1e9;  // seconds
  double prefill512 = 1e9, prefill2048 = 1e9;

  static void Least(double& best, double seconds) { best = std::min(best, seconds); }
};

void Repeat(const auto& run) {
  for (int i = 0; i < kStepsInARow; ++i) run();
}

void RunRound(BenchModel& model, const MachineLimits& limits, Best& best) {
  const auto limit = [&] {
    best.bandwidth = std::max(best.bandwidth, limits.ReadBandwidth());
    best.peak = std::max(best.peak, limits.DotProductPeak());
    best.multiply_add = std::max(best.multiply_add, limits.MultiplyAddPeak());
  };
  limit();
  Best::Least(best.prefill2048, model.PrefillSeconds(2048));
  limit();
  Best::Least(best.prefill512, model.PrefillSeconds(512));
  for (int i = 0; i < kDecodeTurns; ++i) {
    Repeat([&] { best.bandwidth = std::max(best.bandwidth, limits.ReadBandwidth()); });
    Repeat([&] { Best::Least(best.decode1, model.DecodeSeconds(1, 128)); });
    Repeat([&] { Best::Least(best.decode8, model.DecodeSeconds(kBenchBatch, 128)); });
    Repeat([&] { Best::Least(best.decode_long, model.DecodeSeconds(1, kBenchContext - 1)); });
    Repeat([&] { Best::Least(best.attention, model.AttentionSeconds(kBenchContext - 1)); });
  }
  limit();
}

BenchRow Row(const std::string& name, double value, const std::string& unit, double limit) {
  return {name, value, unit, limit, value / limit};
}

std::vector<BenchRow> Rows(const BenchModel& model, const Best& best, double memory) {
  const auto bytes = static_cast<double>(model.weights().matrix_bytes());
  const auto prefill = [&](const std::string& name, int32_t tokens, double seconds) {
    const double limit = best.peak / model.PrefillOperations(tokens);  // prompts per second
    return Row(name, tokens / seconds, "tokens/s", tokens * limit);
  };
  return {
      Row("decode_b1_1b", 1 / best.decode1, "tokens/s", best.bandwidth / bytes),
      prefill("prefill_512_1b", 512, best.prefill512),
      prefill("prefill_2048_1b", 2048, best.prefill2048),
      Row("decode_b8_over_b1", kBenchBatch * best.decode1 / best.decode8, "ratio", kBenchBatch),
      Row("attention_share_2048", best.attention / best.decode_long, "ratio", 1),
      Row("memory_over_weights", memory, "ratio", 1),
      Row("read_bandwidth", best.bandwidth / 1e9, "GB/s", best.bandwidth / 1e9),
      Row("bf16_dot_product_peak", best.peak / 1e9, "GFLOP/s", best.peak / 1e9),
      Row("f32_multiply_add_peak", best.multiply_add / 1e9, "GFLOP/s", best.multiply_add / 1e9)};
}

}  // namespace

absl::StatusOr<std::vector<BenchRow>> RunKernelBench(
    const KernelBenchOptions& options, const std::function<void(const std::string&)>& progress) {
  const size_t available = ProcBytes("/proc/meminfo", "MemAvailable");
  if (available != 0 && available < kMemoryNeeded) {
    return ResourceExhausted("the bench needs 6 GiB of free memory, {} MiB are available",
                             available >> 20);
  }
  if (options.rounds < 1) return InvalidArgument("rounds is {}, the least is 1", options.rounds);
  const size_t before = ProcBytes("/proc/self/status", "VmRSS");
  const int threads = options.threads > 0
                          ? options.threads
                          : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  ThreadPool pool(threads);
  const Exec exec{.threads = &pool};
  progress("building random weights of the TinyLlama-1.1B shape");
  auto model = std::make_unique<BenchModel>(exec, MatrixForms{});
  for (int s = 0; s < 2; ++s)
    model->PrefillSeconds(kBenchContext / 2);  // touches scratch and pages
  const size_t peak = ProcBytes("/proc/self/status", "VmHWM");
  const double memory = static_cast<double>(peak - before - model->pool_bytes()) /
                        static_cast<double>(model->weights().bytes());
  const MachineLimits limits(exec, MatrixMemory(model->weights()));
  Best best;
  for (int32_t round = 0; round < options.rounds; ++round) {
    RunRound(*model, limits, best);
    progress(fmt::format("round {} of {}: decode {:.1f} tokens/s, prefill of 512 {:.0f} tokens/s",
                         round + 1, options.rounds, 1 / best.decode1, 512 / best.prefill512));
  }
  std::vector<BenchRow> rows = Rows(*model, best, memory);
  progress("attention over pages of every format");
  const std::vector<BenchRow> formats = MeasurePageFormats(exec, limits);
  rows.insert(rows.end(), formats.begin(), formats.end());
  model.reset();
  const std::vector<BenchRow> weights = MeasureQuantisedWeights(exec, options.rounds, progress);
  rows.insert(rows.end(), weights.begin(), weights.end());
  const std::vector<BenchRow> experts = MeasureExperts(exec, options.rounds, progress);
  rows.insert(rows.end(), experts.begin(), experts.end());
  return rows;
}

}  // namespace penstock
