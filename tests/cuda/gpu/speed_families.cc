#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/cuda/blend/blend.h"
#include "kernels/cuda/experts.h"
#include "kernels/cuda/latents/latents.h"
#include "kernels/cuda/selection/selection.h"
#include "tests/cuda/cases/attention_arrays.h"
#include "tests/cuda/cases/device_array.h"
#include "tests/cuda/gpu/random_memory.h"
#include "tests/cuda/gpu/suite.h"

// Attention over latents, products of experts, the choice of pages, and what blends add.

namespace penstock::cuda {
namespace {

constexpr int kPage = 16;

// The time of one layer's attention over latents, for the last `rows` of `length` tokens of each of
// `batch` sequences.
double LatentUs(int heads, int batch, int rows, int length) {
  const int pages = (length + kPage - 1) / kPage;
  constexpr int kQueryDims = 128 + kLatentRopeDims;
  std::vector<AttentionSequence> sequences;
  for (int i = 0; i < batch; ++i) {
    sequences.push_back({.first_row = i * rows, .rows = rows, .position = length - rows});
  }
  const AttentionPlan plan = PlanAttention(sequences, heads, kLatentTiles);
  std::vector<uint32_t> blocks(size_t{1} * pages * batch);
  std::iota(blocks.begin(), blocks.end(), 0u);
  const KvPlanes planes{.block_stride = kPage * kLatentRow * 2,
                        .keys = {.row_bytes = kLatentRow * 2},
                        .kv_heads = 1,
                        .head_dim = kLatentRow,
                        .page_log2 = 4};
  const RandomMemory pool(static_cast<size_t>(planes.block_stride) * blocks.size());
  const DeviceArray<uint32_t> tables(blocks);
  const AttentionArrays arrays(sequences, plan, 0,
                               NarrowScratchBytes(plan.shares + 1, 1, kLatentRank));
  const int64_t width = int64_t{heads} * kLatentRank;
  const size_t all = size_t{1} * batch * rows;
  const RandomMemory queries(2 * all * width), rotated(2 * all * heads * kQueryDims);
  const DeviceArray<Bf16> output(all * width);
  KvPlanes kv = planes;
  kv.layer = pool.data();
  LatentAttentionParams params{.attention = {.queries = queries.bf16(),
                                             .query_stride = width,
                                             .output = output.data(),
                                             .output_stride = width,
                                             .kv = kv,
                                             .tables = tables.data(),
                                             .table_stride = pages,
                                             .group = heads,
                                             .scale_log2 = 0.1f},
                               .rotated = rotated.bf16() + 128,
                               .rotated_stride = int64_t{heads} * kQueryDims,
                               .rotated_step = kQueryDims};
  arrays.SetIn(params.attention);
  return MedianUs([&] { LatentAttention(params, plan.counts(), nullptr); });
}

std::string NameOf(const char* what, int heads, int batch, int length) {
  return std::string(what) + " latents, " + std::to_string(heads) + " heads, " +
         std::to_string(batch) + " x " + std::to_string(length);
}

// A layer of gate and up of a mixture: `experts` matrices, of which each of `rows` tokens chooses
// `per_token`, dealt evenly.
struct ExpertShape {
  const char* name;
  int experts, per_token, outputs, inputs;
};

// `form` is null for bf16.
void MeasureGrouped(const ExpertShape& shape, const CodeForm* form, int tokens,
                    const Ceilings& ceilings, Report& report) {
  const size_t matrix = form == nullptr
                            ? size_t{2} * shape.outputs * shape.inputs
                            : static_cast<size_t>(PanelsOf(shape.outputs) * ChunksOf(shape.inputs) *
                                                  form->chunk_bytes());
  const RandomMemory memory(matrix * shape.experts);
  const WeightCodes section{reinterpret_cast<const uint8_t*>(memory.data()),
                            form == nullptr ? CodeForm{} : *form, 0, shape.outputs};
  GroupedWeight weight{.outputs = shape.outputs, .inputs = shape.inputs, .experts = shape.experts};
  if (form == nullptr) {
    weight.data = memory.bf16();
  } else {
    weight.sections = &section;
    weight.section_count = 1;
    weight.expert_bytes = static_cast<int64_t>(matrix);
  }
  const int pairs = tokens * shape.per_token;
  std::vector<int32_t> begins = {0};
  for (int e = 0; e < shape.experts; ++e) {
    begins.push_back(begins.back() + pairs / shape.experts + (e < pairs % shape.experts ? 1 : 0));
  }
  const DeviceArray<int32_t> first(begins);
  const RandomMemory input(size_t{2} * pairs * shape.inputs);
  const DeviceArray<float> output(GroupedFloats(weight, pairs));
  constexpr int32_t kAtOnce = 8;
  const DeviceArray<Bf16> expanded(size_t{kAtOnce} * shape.outputs * shape.inputs);
  const GroupedRows rows{
      .input = input.bf16(), .first = first.data(), .rows = tokens, .pairs = pairs};
  const GroupedRoom room{
      .output = output.data(), .expanded = expanded.data(), .expanded_experts = kAtOnce};
  const double us = MedianUs([&] { GroupedGemm(weight, rows, room, nullptr); });
  const bool wide = pairs > 64 * shape.experts;  // the matrices are read more than once
  const double read = static_cast<double>(matrix) * std::min(pairs, shape.experts);
  const double flops = 2.0 * pairs * shape.outputs * shape.inputs;
  report.measurements.push_back({.name = std::string("experts ") + shape.name +
                                         (form == nullptr ? " bf16" : " mxfp4") + ", " +
                                         std::to_string(tokens) + " tokens",
                                 .median_us = us,
                                 .rate = wide ? flops / us / 1e6 : read / us / 1e3,
                                 .unit = wide ? "TFLOP/s" : "GB/s",
                                 .ceiling = wide ? ceilings.gemm : ceilings.copy});
}

// The time in which a query of each of `batch` sequences chooses `keep` of its pages in a layer.
double ChoiceUs(int batch, int pages, int keep) {
  constexpr int kKvHeads = 8, kGroup = 4, kDim = 128, kBounds = kKvHeads * 2 * kDim;
  std::vector<uint32_t> blocks(size_t{1} * pages * batch);
  std::iota(blocks.begin(), blocks.end(), 0u);
  std::vector<SelectRow> rows;
  for (int i = 0; i < batch; ++i) {
    rows.push_back({.query = i, .table = i, .pages = pages, .keep = keep});
  }
  const RandomMemory bounds(2 * kBounds * blocks.size());
  const RandomMemory queries(size_t{2} * batch * kKvHeads * kGroup * kDim);
  const DeviceArray<uint32_t> tables(blocks);
  const DeviceArray<SelectRow> there(rows);
  const size_t lists = size_t{1} * batch * kKvHeads;
  const DeviceArray<float> scores(lists * pages);
  const DeviceArray<uint32_t> chosen(lists * keep);
  const ChoosePagesParams params{.queries = queries.bf16(),
                                 .query_stride = kKvHeads * kGroup * kDim,
                                 .kv_heads = kKvHeads,
                                 .head_dim = kDim,
                                 .group = kGroup,
                                 .tables = tables.data(),
                                 .table_stride = pages,
                                 .bounds = {.layer = bounds.bf16(), .block_stride = kBounds},
                                 .rows = there.data(),
                                 .count = batch,
                                 .pages_max = pages,
                                 .scores = scores.data(),
                                 .chosen = chosen.data(),
                                 .chosen_stride = keep};
  return MedianUs([&] { ChoosePages(params, nullptr); });
}

// A pool of the 8B shape with twice `tokens` tokens, of which the first half moves to the second.
class BlendArrays {
 public:
  explicit BlendArrays(int tokens)
      : pool_(size_t{2} * tokens / kPage * kLayers * kLayerBytes),
        turns_(std::vector<float>(size_t{1} * tokens * kPairs, 0.6f)),
        turns_of_(std::vector<int32_t>(kLayers, 0)),
        values_(size_t{1} * tokens * kHeads * kDim),
        squares_(size_t{2} * tokens) {
    std::vector<int64_t> slots(tokens);
    std::iota(slots.begin(), slots.end(), int64_t{0});
    from_ = std::make_unique<DeviceArray<int64_t>>(slots);
    std::iota(slots.begin(), slots.end(), int64_t{tokens});
    to_ = std::make_unique<DeviceArray<int64_t>>(slots);
  }

  MoveTokensParams Moves() const {
    return {.kv = Planes(),
            .layer_stride = kLayerBytes,
            .layers = kLayers,
            .from = from_->data(),
            .to = to_->data(),
            .turns = {{turns_.data(), turns_.data(), kPairs}},
            .turns_of = turns_of_.data()};
  }
  ValuesParams Values() const {
    return {.kv = Planes(),
            .slots = from_->data(),
            .values = values_.data(),
            .squares = squares_.data()};
  }

  static constexpr int kHeads = 8, kDim = 128, kPairs = kDim / 2, kLayers = 32;
  static constexpr int kHeadBytes = kPage * kDim * 2, kPlaneBytes = kHeads * kHeadBytes;
  static constexpr int kLayerBytes = 2 * kPlaneBytes;

 private:
  KvPlanes Planes() const {
    return {.layer = pool_.data(),
            .block_stride = int64_t{kLayers} * kLayerBytes,
            .keys = {.head_stride = kHeadBytes, .row_bytes = kDim * 2},
            .values = {.offset = kPlaneBytes, .head_stride = kHeadBytes, .row_bytes = kDim * 2},
            .kv_heads = kHeads,
            .head_dim = kDim,
            .page_log2 = 4};
  }

  const RandomMemory pool_;
  const DeviceArray<float> turns_;
  const DeviceArray<int32_t> turns_of_;
  const DeviceArray<Bf16> values_;
  const DeviceArray<float> squares_;
  std::unique_ptr<DeviceArray<int64_t>> from_, to_;
};

}  // namespace

void MeasureBlends(const Ceilings& ceilings, Report& report) {
  constexpr int kTokens = 2048;
  const BlendArrays arrays(kTokens);
  const double layer_values = 1.0 * kTokens * BlendArrays::kPlaneBytes / kPage;
  const auto measure = [&](const char* name, double bytes, const std::function<void()>& enqueue) {
    const double us = MedianUs(enqueue);
    report.measurements.push_back({.name = name + (", " + std::to_string(kTokens)) + " tokens",
                                   .median_us = us,
                                   .rate = bytes / us / 1e3,
                                   .unit = "GB/s",
                                   .ceiling = ceilings.copy});
  };
  // Keys and values of all layers are read and written.
  measure("blends: tokens that move", 4 * BlendArrays::kLayers * layer_values,
          [&] { MoveTokens(arrays.Moves(), kTokens, nullptr); });
  measure("blends: values compared, a layer", 2 * layer_values,
          [&] { CompareValues(arrays.Values(), kTokens, nullptr); });
}

void MeasureChoices(const Ceilings& ceilings, Report& report) {
  constexpr int kKeep = 64;  // of 16 tokens
  for (const auto& [batch, length] : {std::pair{1, 8192}, {64, 8192}, {16, 32768}}) {
    const double us = ChoiceUs(batch, length / kPage, kKeep);
    report.measurements.push_back({.name = "choice of " + std::to_string(kKeep) + " pages, " +
                                           std::to_string(batch) + " x " + std::to_string(length),
                                   .median_us = us,
                                   .rate = 2.0 * 8 * 2 * 128 * batch * length / kPage / us / 1e3,
                                   .unit = "GB/s",
                                   .ceiling = ceilings.copy});
  }
}

void MeasureLatents(const Ceilings& ceilings, Report& report) {
  for (const int heads : {16, 128}) {  // DeepSeek-V2-Lite, V3
    for (const auto& [batch, length] : {std::pair{1, 4096}, {64, 4096}, {16, 32768}}) {
      const double us = LatentUs(heads, batch, 1, length);
      report.measurements.push_back({.name = NameOf("decode", heads, batch, length),
                                     .median_us = us,
                                     .rate = 2.0 * kLatentRow * batch * length / us / 1e3,
                                     .unit = "GB/s",
                                     .ceiling = ceilings.copy});
    }
    constexpr int kPrompt = 2048;
    const double us = LatentUs(heads, 1, kPrompt, kPrompt);
    const double flops = 1.0 * kPrompt * kPrompt * heads * (kLatentRow + kLatentRank);  // causal
    report.measurements.push_back({.name = NameOf("prefill", heads, 1, kPrompt),
                                   .median_us = us,
                                   .rate = flops / us / 1e6,
                                   .unit = "TFLOP/s",
                                   .ceiling = ceilings.gemm});
  }
}

void MeasureExperts(const Ceilings& ceilings, Report& report) {
  const CodeForm mxfp4{.code = WeightCode::kE2m1, .group = 32};
  for (const ExpertShape& shape : {ExpertShape{"30b-a3b", 128, 8, 1536, 2048},  // Qwen3-30B-A3B
                                   ExpertShape{"gpt-oss", 32, 4, 5760, 2880}}) {
    for (const int tokens : {1, 16, 64, 2048}) {
      MeasureGrouped(shape, nullptr, tokens, ceilings, report);
      MeasureGrouped(shape, &mxfp4, tokens, ceilings, report);
    }
  }
}

}  // namespace penstock::cuda
