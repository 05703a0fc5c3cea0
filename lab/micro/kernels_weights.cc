#include "lab/micro/kernels_weights.h"

#include <fmt/format.h>

#include <algorithm>

#include "lab/micro/kernels_model.h"

namespace penstock {
namespace {

constexpr int32_t kPrompt = 512;
constexpr int32_t kPosition = 128;
constexpr int kStepsInTurn = 8;

// The best of every figure over the rounds.
struct BestOfWeights {
  double bandwidth = 0, peak = 0;
  double decode1 = 1e9, decode8 = 1e9, prefill = 1e9;  // seconds
};

// The peak of the products of a format: numbers are expanded to bf16.
double PeakOf(const QuantisedFormat& format, const MachineLimits& limits) {
  return format.e4m3() ? limits.DotProductPeak() : limits.IntegerPeak();
}

void RunWeightsRound(BenchModel& model, const QuantisedFormat& format, const MachineLimits& limits,
                     BestOfWeights& best) {
  const auto repeat = [](const auto& run) {
    for (int i = 0; i < kStepsInTurn; ++i) run();
  };
  best.peak = std::max(best.peak, PeakOf(format, limits));
  best.prefill = std::min(best.prefill, model.PrefillSeconds(kPrompt));
  best.peak = std::max(best.peak, PeakOf(format, limits));
  for (int turn = 0; turn < 2; ++turn) {
    repeat([&] { best.bandwidth = std::max(best.bandwidth, limits.ReadBandwidth()); });
    repeat([&] { best.decode1 = std::min(best.decode1, model.DecodeSeconds(1, kPosition)); });
    repeat([&] {
      best.decode8 = std::min(best.decode8, model.DecodeSeconds(kBenchBatch, kPosition));
    });
  }
}

BestOfWeights Measure(BenchModel& model, const QuantisedFormat& format, const Exec& exec,
                      int32_t rounds) {
  model.PrefillSeconds(kPrompt);  // touches scratch and pages
  const MachineLimits limits(exec, MatrixMemory(model.weights()));
  BestOfWeights best;
  for (int32_t round = 0; round < rounds; ++round) RunWeightsRound(model, format, limits, best);
  return best;
}

BenchRow RowOf(const std::string& name, double value, const std::string& unit, double limit) {
  return {name, value, unit, limit, value / limit};
}

void AddRows(const std::string& form, const BenchModel& model, const BestOfWeights& best,
             std::vector<BenchRow>& rows) {
  const auto bytes = static_cast<double>(model.weights().matrix_bytes());
  rows.push_back(RowOf("decode_b1_" + form, 1 / best.decode1, "tokens/s", best.bandwidth / bytes));
  rows.push_back(RowOf(fmt::format("prefill_{}_{}", kPrompt, form), kPrompt / best.prefill,
                       "tokens/s", kPrompt * best.peak / model.PrefillOperations(kPrompt)));
}

}  // namespace

std::vector<BenchRow> MeasureQuantisedWeights(
    const Exec& exec, int32_t rounds, const std::function<void(const std::string&)>& progress) {
  std::vector<BenchRow> rows;
  const QuantisedFormat int8{.bits = 8, .group = 128}, int4{.bits = 4, .group = 128};
  const QuantisedFormat fp8{.code = CodeType::kE4m3, .group = 128, .scale = ScaleType::kF32};
  const auto k_type = [](int bits, int group) {
    return QuantisedFormat{
        .bits = bits, .group = group, .scale = ScaleType::kTwoLevel, .offsets = bits < 6};
  };
  const std::pair<const char*, QuantisedFormat> forms[] = {{"fp8", fp8},
                                                           {"int8", int8},
                                                           {"int4", int4},
                                                           {"q4_k", k_type(4, 32)},
                                                           {"q5_k", k_type(5, 32)},
                                                           {"q6_k", k_type(6, 16)}};
  for (const auto& [form, format] : forms) {
    progress(fmt::format("weights of {}", format.Name()));
    BenchModel model(exec, {.layers = format, .lm_head = format.e4m3() ? fp8 : int8});
    const BestOfWeights best = Measure(model, format, exec, rounds);
    AddRows(form, model, best, rows);
    if (format != int4) continue;
    rows.push_back(RowOf("decode_b8_int4_over_b1", kBenchBatch * best.decode1 / best.decode8,
                         "ratio", kBenchBatch));
    rows.push_back(RowOf("int16_dot_product_peak", best.peak / 1e9, "GFLOP/s", best.peak / 1e9));
  }
  return rows;
}

}  // namespace penstock
