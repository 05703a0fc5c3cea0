#include "lab/micro/kernels_experts.h"

#include <algorithm>
#include <string>
#include <utility>

#include "lab/micro/kernels_model.h"

namespace penstock {
namespace {

constexpr int32_t kPosition = 128;
constexpr int kStepsInTurn = 8;

struct BestOfExperts {
  double bandwidth = 0;
  double decode1 = 1e9, decode8 = 1e9;  // seconds
};

BestOfExperts MeasureModel(BenchModel& model, const Exec& exec, int32_t rounds) {
  model.DecodeSeconds(kBenchBatch, kPosition);  // touches scratch and pages
  const MachineLimits limits(exec, model.MatrixMemory());
  BestOfExperts best;
  for (int32_t turn = 0; turn < 2 * rounds; ++turn) {
    for (int i = 0; i < kStepsInTurn; ++i) {
      best.bandwidth = std::max(best.bandwidth, limits.ReadBandwidth());
      best.decode1 = std::min(best.decode1, model.DecodeSeconds(1, kPosition + i));
      best.decode8 = std::min(best.decode8, model.DecodeSeconds(kBenchBatch, kPosition));
    }
  }
  return best;
}

// The forms that are measured, and the ends of their rows' names.
std::vector<std::pair<std::string, MatrixForms>> FormsOfExperts() {
  const QuantisedFormat int8{.bits = 8, .group = 128}, int4{.bits = 4, .group = 128};
  const QuantisedFormat mxfp4{
      .code = CodeType::kE2m1, .bits = 4, .group = 32, .scale = ScaleType::kBf16};
  return {{"", {}},
          {"_int4", {.layers = int4, .lm_head = int8}},
          {"_mxfp4", {.layers = mxfp4, .lm_head = int8}}};
}

}  // namespace

std::vector<BenchRow> MeasureExperts(const Exec& exec, int32_t rounds,
                                     const std::function<void(const std::string&)>& progress) {
  std::vector<BenchRow> rows;
  for (const auto& [suffix, forms] : FormsOfExperts()) {
    progress("experts: moe_decode_b1" + suffix);
    BenchModel model(exec, forms, ExpertsShape());
    const BestOfExperts best = MeasureModel(model, exec, rounds);
    const double limit = best.bandwidth / static_cast<double>(model.weights().step_bytes());
    rows.push_back({.name = "moe_decode_b1" + suffix,
                    .value = 1 / best.decode1,
                    .unit = "tokens/s",
                    .limit = limit,
                    .fraction = 1 / best.decode1 / limit});
    if (!suffix.empty()) continue;
    const double ratio = kBenchBatch * best.decode1 / best.decode8;
    rows.push_back({.name = "moe_decode_b8_over_b1",
                    .value = ratio,
                    .unit = "ratio",
                    .limit = kBenchBatch,
                    .fraction = ratio / kBenchBatch});
  }
  return rows;
}

}  // namespace penstock
