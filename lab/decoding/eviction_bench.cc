#include "lab/decoding/eviction_bench.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <numeric>
#include <random>
#include <thread>

#include "kernels/cpu/thread_pool.h"
#include "kernels/eviction/evict_layer.h"
#include "lab/micro/kernels_model.h"
#include "prefill_worker/prompt_eviction.h"

namespace penstock {
namespace {

constexpr int32_t kContext = 8192, kKept = 1024;
constexpr int32_t kPrompt = 2048, kPromptKept = 256;
constexpr int32_t kBatch = 8, kStepTokens = 512;

// The model, and pages for a batch of whole contexts, all of which are resident.
class EvictionModel {
 public:
  EvictionModel(const Exec& exec, const MatrixForms& forms)
      : weights_(RandomWeights(Shape(), 1, 0.02f, forms)),
        runner_(weights_, exec, kStepTokens),
        each_(runner_.kv_layout().BlocksFor(kContext + 1)),
        pages_(static_cast<size_t>(each_ * kBatch) * runner_.kv_layout().BlockStride()),
        blocks_(static_cast<size_t>(each_ * kBatch)),
        serials_(blocks_.size()),
        logits_(static_cast<size_t>(kBatch * runner_.vocab())) {
    FillPages();
    std::iota(blocks_.begin(), blocks_.end(), 0u);
    for (std::atomic<uint64_t>& serial : serials_) serial = 1;
    for (size_t i = 0; i < tokens_.size(); ++i) tokens_[i] = static_cast<uint32_t>(i * 7 % 32000);
  }

  // The tokens that a step attends to: all kContext of them, or kKept.
  enum class Attends { kAll, kKeptByEviction, kSelected };

  // One token of each of kBatch sequences behind kContext tokens.
  absl::StatusOr<double> DecodeSeconds(Attends attends) {
    const bool evicts = attends == Attends::kKeptByEviction;
    const int32_t pages = kKept / runner_.kv_layout().block_tokens;
    std::vector<SequenceStep> steps;
    for (int s = 0; s < kBatch; ++s) {
      steps.push_back({.tokens = std::span(tokens_).first(1),
                       .position = kContext,
                       .blocks = Table(s),
                       .evicted = evicts ? kContext - kKept : 0,
                       .selection = {.pages = attends == Attends::kSelected ? pages : 0,
                                     .checked = kContext + 1},
                       .wants_logits = true});
    }
    return Seconds(steps);
  }

  // A prompt of kPrompt tokens; with an eviction if it is not null.
  absl::StatusOr<double> PrefillSeconds(const EvictionRule* rule) {
    double seconds = 0;
    for (int32_t at = 0; at < kPrompt; at += kStepTokens) {
      const std::vector<SequenceStep> steps = {
          {.tokens = tokens_, .position = at, .blocks = Table(0)}};
      const bool evicts = rule != nullptr && at + kStepTokens == kPrompt;
      ASSIGN_OR_RETURN(const double more, Seconds(steps, evicts ? rule : nullptr));
      seconds += more;
    }
    return seconds;
  }
  // Of the last PrefillSeconds, the eviction's.
  double eviction_seconds() const { return eviction_seconds_; }

 private:
  static ModelConfig Shape() {
    ModelConfig config = TinyLlamaShape();
    config.max_position = kContext + 16;
    return config;
  }

  std::span<const uint32_t> Table(int64_t sequence) const {
    return std::span(blocks_).subspan(static_cast<size_t>(sequence * each_),
                                      static_cast<size_t>(each_));
  }

  // Keys and values of about 1, the same every prime number of them, so that pages differ.
  void FillPages() {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<Bf16> values(65'537);
    for (Bf16& value : values) value = ToBf16(normal(random));
    const size_t elements = pages_.bytes() / sizeof(Bf16);
    for (size_t at = 0; at < elements; at += values.size()) {
      std::copy_n(values.begin(), std::min(values.size(), elements - at), pages_.as<Bf16>() + at);
    }
  }

  PagedKv kv() const {
    return {.arena = pages_.as<std::byte>(),
            .blocks = std::ssize(blocks_),
            .layout = runner_.kv_layout(),
            .serials = serials_.data()};
  }

  void Evict(const EvictionRule& rule, int32_t layer, View<const float, 2> queries) {
    const auto begun = std::chrono::steady_clock::now();
    const EvictionAttention attention = *runner_.eviction_attention();
    const int64_t first = queries.dim(0) - rule.observed;
    EvictLayer(*attention.evictor,
               {.keys = {.scoring = rule.scoring,
                         .kv = kv(),
                         .layer = layer,
                         .blocks = Table(0),
                         .tokens = kPrompt,
                         .queries = {queries.row(first), {rule.observed, queries.dim(1)}},
                         .heads = attention.heads,
                         .scale = attention.scale,
                         .cap = attention.cap,
                         .scores = {}},
                .rule = rule.keep,
                .to = Table(1)});
    eviction_seconds_ += SecondsSince(begun);
  }

  absl::StatusOr<double> Seconds(const std::vector<SequenceStep>& steps,
                                 const EvictionRule* rule = nullptr) {
    const auto wanted = static_cast<int64_t>(
        std::count_if(steps.begin(), steps.end(), [](const auto& s) { return s.wants_logits; }));
    StepArgs args{
        .sequences = steps, .kv = kv(), .logits = {logits_.data(), {wanted, runner_.vocab()}}};
    if (rule != nullptr) {
      eviction_seconds_ = 0;
      args.on_queries = [&](int32_t layer, View<const float, 2> queries) {
        Evict(*rule, layer, queries);
      };
    }
    const auto begun = std::chrono::steady_clock::now();
    RETURN_IF_ERROR(runner_.Step(args));
    return SecondsSince(begun);
  }

  static double SecondsSince(std::chrono::steady_clock::time_point begun) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  }

  const Weights weights_;
  TransformerRunner runner_;
  const int64_t each_;  // blocks of a sequence
  const Buffer pages_;
  std::vector<uint32_t> blocks_;
  std::vector<std::atomic<uint64_t>> serials_;
  std::array<uint32_t, kStepTokens> tokens_{};
  std::vector<float> logits_;
  double eviction_seconds_ = 0;
};

struct Speedups {
  double eviction = 0, selection = 0;
};

absl::StatusOr<Speedups> Measure(EvictionModel& model, int rounds) {
  using Attends = EvictionModel::Attends;
  // Bounds of keys are computed once; then the three steps of a round are of the same minute.
  RETURN_IF_ERROR(model.DecodeSeconds(Attends::kSelected).status());
  double least[3] = {};
  for (int i = 0; i < rounds; ++i) {
    for (const Attends attends : {Attends::kAll, Attends::kKeptByEviction, Attends::kSelected}) {
      ASSIGN_OR_RETURN(const double seconds, model.DecodeSeconds(attends));
      double& best = least[static_cast<size_t>(attends)];
      best = i == 0 ? seconds : std::min(best, seconds);
    }
  }
  return Speedups{.eviction = least[0] / least[1], .selection = least[0] / least[2]};
}

void AddRows(const Speedups& measured, const std::string& suffix, std::vector<BenchRow>& rows) {
  const auto add = [&](const std::string& name, double speedup, double goal) {
    rows.push_back({name + suffix, speedup, "x", goal, speedup / goal});
  };
  add("evict_decode_speedup", measured.eviction, 1.8);
  add("quest_decode_speedup", measured.selection, 1.5);
}

}  // namespace

absl::StatusOr<std::vector<BenchRow>> RunEvictionBench(
    const EvictionBenchOptions& options, const std::function<void(const std::string&)>& progress) {
  ThreadPool pool(options.threads > 0
                      ? options.threads
                      : std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  const Exec exec{.threads = &pool};
  std::vector<BenchRow> rows;
  {
    progress("random weights of the TinyLlama-1.1B shape, bf16");
    EvictionModel model(exec, {});
    progress("decode steps of 8 sequences of 8,192 tokens");
    ASSIGN_OR_RETURN(const Speedups measured, Measure(model, options.rounds));
    AddRows(measured, "", rows);
    progress("a prompt of 2,048 tokens");
    const EvictionRule rule =
        RuleOf({.method = KvEvictionMethod::kSnapKv, .keep_tokens = kPromptKept});
    ASSIGN_OR_RETURN(const double seconds, model.PrefillSeconds(&rule));
    const double share = model.eviction_seconds() / seconds;
    rows.push_back({"snapkv_select_share", share, "", 0.02, 0.02 / share});
  }
  progress("4-bit weights");
  const QuantisedFormat int8{.bits = 8, .group = 128}, int4{.bits = 4, .group = 128};
  EvictionModel model(exec, {.layers = int4, .lm_head = int8});
  ASSIGN_OR_RETURN(const Speedups measured, Measure(model, options.rounds));
  AddRows(measured, "_int4", rows);
  return rows;
}

}  // namespace penstock
