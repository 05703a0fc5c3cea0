#include "lab/micro/kernels.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <numeric>
#include <thread>

#include "kernels/attention.h"
#include "kernels/cpu/thread_pool.h"
#include "lab/micro/kernels_limits.h"
#include "lab/micro/kernels_pages.h"
#include "model/forward/transformer_runner.h"

namespace penstock {
namespace {

constexpr int32_t kChunk = 512;
constexpr int32_t kContext = 2048;
constexpr int32_t kBatch = 8;
// Turns of every kind of decode step in a round. Some in a row, as in service; in turns, because a
// machine is not equally fast at all times.
constexpr int kDecodeTurns = 4;
constexpr int kStepsInARow = 4;
constexpr size_t kMemoryNeeded = size_t{6} << 30;

ModelConfig TinyLlama() {
  return {.architecture = "LlamaForCausalLM",
          .layers = 22,
          .hidden = 2048,
          .intermediate = 5632,
          .heads = 32,
          .kv_heads = 4,
          .head_dim = 64,
          .vocab = 32000,
          .max_position = kContext + 64};
}

// A value in bytes of /proc/self/status or /proc/meminfo, 0 where there is none.
size_t ProcBytes(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key + ":", 0) == 0) return std::stoull(line.substr(key.size() + 1)) << 10;
  }
  return 0;
}

// The bytes that one decode step reads.
MachineLimits::Memory MatrixMemory(const Weights& weights) {
  MachineLimits::Memory memory;
  const auto add = [&](const PackedMatrix& matrix) {
    memory.push_back(std::as_bytes(
        std::span(matrix.panel(0), static_cast<size_t>(matrix.panels() * matrix.stride()))));
  };
  for (const LayerWeights& layer : weights.layers) {
    add(layer.qkv);
    add(layer.attention_output);
    add(layer.gate_up);
    add(layer.down);
  }
  add(weights.lm_head);
  return memory;
}

double SecondsOfRun(const auto& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The model, its runner, and pages for kBatch sequences of up to kContext + 64 tokens.
class Model {
 public:
  explicit Model(const Exec& exec)
      : exec_(exec),
        weights_(RandomWeights(TinyLlama(), 1)),
        runner_(weights_, exec, kChunk),
        attention_(weights_.config.head_dim, ThreadCount(exec)),
        table_blocks_(runner_.kv_layout().BlocksFor(runner_.max_position())),
        pages_(static_cast<size_t>(table_blocks_ * kBatch) * runner_.kv_layout().BlockStride()),
        kv_{pages_.as<std::byte>(), table_blocks_ * kBatch, runner_.kv_layout()},
        tokens_(kContext),
        blocks_(static_cast<size_t>(table_blocks_ * kBatch)),
        logits_(static_cast<size_t>(kBatch * runner_.vocab())) {
    std::memset(pages_.as<std::byte>(), 0, pages_.bytes());  // so that all of the pool is resident
    std::iota(blocks_.begin(), blocks_.end(), 0u);
    for (size_t i = 0; i < tokens_.size(); ++i) tokens_[i] = static_cast<uint32_t>(i * 7 % 32000);
  }

  const Weights& weights() const { return weights_; }
  size_t pool_bytes() const { return pages_.bytes(); }

  // The cost of one token at `position` of each of `sequences`.
  double DecodeSeconds(int sequences, int32_t position) {
    std::vector<SequenceStep> steps;
    for (int s = 0; s < sequences; ++s) steps.push_back(Tokens(s, position, 1, true));
    return SecondsOfRun([&] { Step(steps); });
  }

  double PrefillSeconds(int32_t count) {
    return SecondsOfRun([&] {
      for (int32_t first = 0; first < count; first += kChunk) {
        Step({Tokens(0, first, kChunk, first + kChunk == count)});
      }
    });
  }

  // Useful operations of PrefillSeconds: the last layer gives only keys and values for most tokens.
  double PrefillOperations(int32_t count) const {
    const ModelConfig& c = weights_.config;
    const double width = double{1} * c.heads * c.head_dim;
    const double qkv = 2.0 * c.hidden * (width + 2.0 * c.kv_heads * c.head_dim);
    const double rest = 2.0 * c.hidden * (width + 3.0 * c.intermediate);
    const double causal = 4.0 * width * (count * (count + 1.0) / 2);
    return (qkv * count + rest * count + causal) * (c.layers - 1) + qkv * count + rest +
           4.0 * width * count + 2.0 * c.hidden * c.vocab;
  }

  // Attention of one decode step at `position`, over all layers, and nothing else.
  double AttentionSeconds(int32_t position) {
    const ModelConfig& c = weights_.config;
    const int64_t width = int64_t{c.heads} * c.head_dim;
    std::vector<float> queries(static_cast<size_t>(width), 0.5f), output(queries.size());
    const AttentionSequence sequence{
        .first_row = 0, .rows = 1, .position = position, .blocks = blocks_};
    return SecondsOfRun([&] {
      for (int32_t layer = 0; layer < c.layers; ++layer) {
        Attention(exec_, {.queries = {queries.data(), {1, width}},
                          .output = {output.data(), {1, width}},
                          .heads = c.heads,
                          .kv = kv_,
                          .layer = layer,
                          .scale = 0.125f,
                          .sequences = {&sequence, 1},
                          .scratch = &attention_});
      }
    });
  }

 private:
  SequenceStep Tokens(int sequence, int32_t position, int32_t count, bool wants_logits) const {
    return {.tokens = std::span(tokens_).subspan(position % kChunk, count),
            .position = position,
            .blocks = std::span(blocks_).subspan(sequence * table_blocks_, table_blocks_),
            .wants_logits = wants_logits};
  }

  void Step(const std::vector<SequenceStep>& sequences) {
    const int64_t rows = std::count_if(sequences.begin(), sequences.end(),
                                       [](const SequenceStep& s) { return s.wants_logits; });
    const absl::Status status = runner_.Step(
        {.sequences = sequences, .kv = kv_, .logits = {logits_.data(), {rows, runner_.vocab()}}});
    if (!status.ok()) std::abort();
  }

  const Exec exec_;
  const Weights weights_;
  TransformerRunner runner_;
  const AttentionScratch attention_;
  const int64_t table_blocks_;
  const Buffer pages_;
  const PagedKv kv_;
  std::vector<uint32_t> tokens_;
  std::vector<uint32_t> blocks_;
  std::vector<float> logits_;
};

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

void RunRound(Model& model, const MachineLimits& limits, Best& best) {
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
    Repeat([&] { Best::Least(best.decode8, model.DecodeSeconds(kBatch, 128)); });
    Repeat([&] { Best::Least(best.decode_long, model.DecodeSeconds(1, kContext - 1)); });
    Repeat([&] { Best::Least(best.attention, model.AttentionSeconds(kContext - 1)); });
  }
  limit();
}

BenchRow Row(const std::string& name, double value, const std::string& unit, double limit) {
  return {name, value, unit, limit, value / limit};
}

std::vector<BenchRow> Rows(const Model& model, const Best& best, double memory) {
  const auto bytes = static_cast<double>(model.weights().matrix_bytes());
  const auto prefill = [&](const std::string& name, int32_t tokens, double seconds) {
    const double limit = best.peak / model.PrefillOperations(tokens);  // prompts per second
    return Row(name, tokens / seconds, "tokens/s", tokens * limit);
  };
  return {
      Row("decode_b1_1b", 1 / best.decode1, "tokens/s", best.bandwidth / bytes),
      prefill("prefill_512_1b", 512, best.prefill512),
      prefill("prefill_2048_1b", 2048, best.prefill2048),
      Row("decode_b8_over_b1", kBatch * best.decode1 / best.decode8, "ratio", kBatch),
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
  Model model(exec);
  for (int s = 0; s < 2; ++s) model.PrefillSeconds(kContext / 2);  // touches scratch and pages
  const size_t peak = ProcBytes("/proc/self/status", "VmHWM");
  const double memory = static_cast<double>(peak - before - model.pool_bytes()) /
                        static_cast<double>(model.weights().bytes());
  const MachineLimits limits(exec, MatrixMemory(model.weights()));
  Best best;
  for (int32_t round = 0; round < options.rounds; ++round) {
    RunRound(model, limits, best);
    progress(fmt::format("round {} of {}: decode {:.1f} tokens/s, prefill of 512 {:.0f} tokens/s",
                         round + 1, options.rounds, 1 / best.decode1, 512 / best.prefill512));
  }
  std::vector<BenchRow> rows = Rows(model, best, memory);
  progress("attention over pages of every format");
  const std::vector<BenchRow> formats = MeasurePageFormats(exec, limits);
  rows.insert(rows.end(), formats.begin(), formats.end());
  return rows;
}

}  // namespace penstock
