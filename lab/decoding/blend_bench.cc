#include "lab/decoding/blend_bench.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <span>
#include <thread>

#include "kernels/cpu/thread_pool.h"
#include "kvstore/names/kv_policy.h"
#include "lab/micro/kernels_model.h"
#include "model/forward/transformer_runner.h"

namespace penstock {
namespace {

using BlendTokens = std::vector<uint32_t>;

constexpr int32_t kDocuments = 4, kDocument = 400, kLeading = 16, kQuestion = 16;
constexpr int32_t kBlendStepTokens = 512;
constexpr int32_t kBlendPrompt = kLeading + kDocuments * kDocument;  // without the question
constexpr KvBlend kBlend{.percent = 15};

// Prompts of leading tokens, kDocuments documents and a question, on one model.
class BlendModel {
 public:
  explicit BlendModel(TransformerRunner& runner)
      : runner_(runner),
        layout_(runner.kv_layout()),
        each_(layout_.BlocksFor(kBlendPrompt + kQuestion)),
        pages_(static_cast<size_t>(each_ * (2 + kDocuments)) * layout_.BlockStride()) {
    blocks_.resize(static_cast<size_t>(each_ * (2 + kDocuments)));
    std::iota(blocks_.begin(), blocks_.end(), 0u);
  }

  // The logits behind each of the last `wanted` tokens of a prompt that is computed in full.
  absl::StatusOr<std::vector<float>> Full(const BlendTokens& prompt, int32_t wanted) {
    return Compute(prompt, 0, Table(0), wanted);
  }

  // Computes every document of the prompt alone behind the leading tokens.
  absl::Status ComputeParts(const BlendTokens& prompt) {
    for (int32_t i = 0; i < kDocuments; ++i) {
      BlendTokens alone(prompt.begin(), prompt.begin() + kLeading);
      const auto document = prompt.begin() + kLeading + i * kDocument;
      alone.insert(alone.end(), document, document + kDocument);
      RETURN_IF_ERROR(Compute(alone, 0, Table(2 + i), 0).status());
    }
    return absl::OkStatus();
  }

  // The logits behind the last `wanted` tokens of a prompt whose documents have been computed. The
  // first one keeps its position.
  absl::StatusOr<std::vector<float>> Blend(const BlendTokens& prompt, int32_t wanted) {
    const KeyRotations rotations = *runner_.key_rotations();
    for (int32_t i = 0; i < kDocuments; ++i) {
      // Leading tokens too, with the first one.
      MoveTokens(rotations, {.kv = kv(),
                             .from = Table(2 + i),
                             .to = Table(1),
                             .from_position = i == 0 ? 0 : kLeading,
                             .to_position = i == 0 ? 0 : kLeading + i * kDocument,
                             .tokens = i == 0 ? kLeading + kDocument : kDocument});
    }
    for (int32_t i = 1; i < kDocuments; ++i) {
      BlendedTokens blended{.recompute = static_cast<int32_t>(kBlend.Recomputed(kDocument)),
                            .deviation_max = 1e9f};
      const int32_t begin = kLeading + i * kDocument;
      const SequenceStep step{
          .tokens = std::span(prompt).subspan(static_cast<size_t>(begin), kDocument),
          .position = begin,
          .blocks = Table(1),
          .blended = &blended};
      RETURN_IF_ERROR(runner_.Step({.sequences = {&step, 1}, .kv = kv(), .logits = {}}));
    }
    return Compute(prompt, kBlendPrompt, Table(1), wanted);
  }

 private:
  std::span<const uint32_t> Table(int64_t index) const {
    return std::span(blocks_).subspan(static_cast<size_t>(index * each_),
                                      static_cast<size_t>(each_));
  }
  PagedKv kv() const {
    return {.arena = pages_.as<std::byte>(), .blocks = std::ssize(blocks_), .layout = layout_};
  }

  absl::StatusOr<std::vector<float>> Compute(const BlendTokens& tokens, int32_t begin,
                                             std::span<const uint32_t> table, int32_t wanted) {
    const auto end = static_cast<int32_t>(tokens.size());
    const int32_t plain_end = end - wanted;
    for (int32_t at = begin; at < plain_end; at += kBlendStepTokens) {
      const int32_t count = std::min(kBlendStepTokens, plain_end - at);
      const SequenceStep step = Part(tokens, at, count, table);
      RETURN_IF_ERROR(runner_.Step({.sequences = {&step, 1}, .kv = kv(), .logits = {}}));
    }
    std::vector<float> logits(static_cast<size_t>(int64_t{wanted} * runner_.vocab()));
    std::vector<SequenceStep> steps;
    for (int32_t at = plain_end; at < end; ++at) {
      steps.push_back(Part(tokens, at, 1, table));
      steps.back().wants_logits = true;
    }
    if (steps.empty()) return logits;
    RETURN_IF_ERROR(runner_.Step(
        {.sequences = steps, .kv = kv(), .logits = {logits.data(), {wanted, runner_.vocab()}}}));
    return logits;
  }

  static SequenceStep Part(const BlendTokens& tokens, int32_t begin, int32_t count,
                           std::span<const uint32_t> table) {
    return {
        .tokens = std::span(tokens).subspan(static_cast<size_t>(begin), static_cast<size_t>(count)),
        .position = begin,
        .blocks = table};
  }

  TransformerRunner& runner_;
  const KvLayout layout_;
  const int64_t each_;  // blocks of a sequence: the full one, the blended one, each document's
  const Buffer pages_;
  std::vector<uint32_t> blocks_;
};

double SecondsSince(std::chrono::steady_clock::time_point begun) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

absl::StatusOr<BenchRow> MeasureTtft(const Exec& exec, int rounds) {
  const Weights weights = RandomWeights(TinyLlamaShape(), 1, 0.02f, {});
  TransformerRunner runner(weights, exec, kBlendStepTokens);
  BlendModel model(runner);
  BlendTokens prompt;
  for (int32_t i = 0; i < kBlendPrompt + kQuestion; ++i)
    prompt.push_back(static_cast<uint32_t>(i * 7 % 32000));
  RETURN_IF_ERROR(model.ComputeParts(prompt));
  double full = 0, blended = 0;
  for (int i = 0; i < rounds; ++i) {
    auto begun = std::chrono::steady_clock::now();
    RETURN_IF_ERROR(model.Full(prompt, 1).status());
    const double of_full = SecondsSince(begun);
    begun = std::chrono::steady_clock::now();
    RETURN_IF_ERROR(model.Blend(prompt, 1).status());
    const double of_blended = SecondsSince(begun);
    full = i == 0 ? of_full : std::min(full, of_full);
    blended = i == 0 ? of_blended : std::min(blended, of_blended);
  }
  const double fraction = blended / full, goal = 0.4;
  return BenchRow{"blend_ttft_fraction", fraction, "", goal, goal / fraction};
}

}  // namespace

absl::StatusOr<BenchRow> RunBlendBench(const BlendBenchOptions& options,
                                       const std::function<void(const std::string&)>& progress) {
  ThreadPool pool(options.threads > 0
                      ? options.threads
                      : std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  progress("a prompt of four documents of 400 tokens, of the TinyLlama-1.1B shape");
  return MeasureTtft({.threads = &pool}, options.rounds);
}

}  // namespace penstock
