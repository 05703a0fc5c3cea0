#include "lab/micro/kernels_experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "base/check.h"
#include "lab/fake/temp_folder.h"
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
  const MachineLimits limits(exec, MatrixMemory(model.weights()));
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

// The biases of routers with which experts are chosen about as often as Zipf's law says, in another
// order in each layer.
void SkewRouters(Weights& weights) {
  std::mt19937 random(1);
  for (LayerWeights& layer : weights.layers) {
    std::vector<float>& bias = layer.experts->router_bias;
    for (size_t e = 0; e < layer.experts->experts.size(); ++e) {
      bias.push_back(-std::log(static_cast<float>(e + 1)));
    }
    std::ranges::shuffle(bias, random);
  }
}

// A model of ExpertsShape in 4 bits, with all experts in memory or with a cache.
Weights SkewedWeights(std::unique_ptr<ExpertCache> cache) {
  const MatrixForms forms = FormsOfExperts()[1].second;
  Weights weights = RandomWeights(ExpertsShape(), 1, 0.02f, forms, std::move(cache));
  SkewRouters(weights);
  return weights;
}

// Tokens/s of steps of one sequence, behind some that fill the cache.
double SkewedDecode(BenchModel& model) {
  constexpr int32_t kWarmUp = 200, kMeasured = 200;
  for (int32_t i = 0; i < kWarmUp; ++i) model.DecodeSeconds(1, kPosition + i);
  double seconds = 0;
  for (int32_t i = 0; i < kMeasured; ++i) {
    seconds += model.DecodeSeconds(1, kPosition + kWarmUp + i);
  }
  return kMeasured / seconds;
}

double HitShare(const ExpertCacheStats& stats) {
  return static_cast<double>(stats.hits) / static_cast<double>(stats.hits + stats.misses);
}

void MeasureOnDisk(const Exec& exec, const std::function<void(const std::string&)>& progress,
                   std::vector<BenchRow>& rows) {
  progress("experts: moe_disk, all in memory");
  uint64_t all = 0;
  double in_memory = 0;
  {
    BenchModel model(exec, SkewedWeights(nullptr));
    for (const LayerWeights& layer : model.weights().layers) {
      for (const GatedWeights& expert : layer.experts->experts) all += expert.memory_bytes();
    }
    in_memory = SkewedDecode(model);
  }
  for (const auto& [name, parts] : {std::pair("moe_disk_half", 2), {"moe_disk_quarter", 4}}) {
    progress(fmt::format("experts: {}", name));
    const TempFolder folder;
    auto cache = ExpertCache::Create({.directory = folder.path(), .bytes = all / parts});
    PENSTOCK_CHECK(cache.ok(), "(no file for experts)");
    BenchModel model(exec, SkewedWeights(*std::move(cache)));
    const double rate = SkewedDecode(model);
    rows.push_back({.name = name,
                    .value = rate,
                    .unit = "tokens/s",
                    .limit = in_memory,
                    .fraction = rate / in_memory});
    const double hits = HitShare(model.weights().expert_cache->stats());
    rows.push_back({.name = fmt::format("{}_hits", name),
                    .value = hits,
                    .unit = "ratio",
                    .limit = 1,
                    .fraction = hits});
  }
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
  MeasureOnDisk(exec, progress, rows);
  return rows;
}

}  // namespace penstock
