#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>

#include "kernels/cuda/angle_order.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/quantised_gemm.h"
#include "kernels/cuda/sample.h"
#include "kernels/cuda/slabs.h"
#include "tests/cuda/cases/attention_arrays.h"
#include "tests/cuda/cases/device_array.h"
#include "tests/cuda/cases/kv_codec_case.h"
#include "tests/cuda/cases/kv_pool_case.h"
#include "tests/cuda/gpu/random_memory.h"
#include "tests/cuda/gpu/suite.h"

namespace penstock::cuda {
namespace {

using enum KvCode;

struct Shape {
  const char* name;
  KvCode keys, values;
  double goal;
  int span = 0;  // tokens, as AttentionParams::span
  bool centred = false;
};

// One layer of an 8B model (8 KV heads of 128, group 4), `batch` sequences of `length`.
struct AttentionBench {
  AttentionBench(const Shape& shape, int batch, int length)
      : sequences(batch),
        options{.keys = shape.keys, .values = shape.values, .kv_heads = 8, .layers = 1},
        pages((length + 15) / 16),
        planes(PlanesOfCodes(options, 0, nullptr)),
        pool(static_cast<size_t>(planes.block_stride) * pages * batch),
        tables(Tables(pages, batch)),
        span(shape.span) {
    planes.layer = pool.data();
    if (shape.centred) {
      angles = std::make_unique<RandomMemory>(2 * static_cast<size_t>(AngleElements(length, kDim)));
    }
    if (span == 0) return;
    recent = std::make_unique<AttentionBench>(Shape{"", kBf16, kBf16, 0}, batch, length);
  }

  static std::vector<uint32_t> Tables(int pages, int batch) {
    std::vector<uint32_t> blocks(size_t{1} * pages * batch);
    std::iota(blocks.begin(), blocks.end(), 0u);
    std::shuffle(blocks.begin(), blocks.end(), std::mt19937_64(2));
    return blocks;
  }

  static constexpr int kHeads = 32, kDim = 128, kWidth = kHeads * kDim;
  int sequences;
  KvPoolCase::Options options;
  int pages;
  KvPlanes planes;
  RandomMemory pool;
  DeviceArray<uint32_t> tables;
  int span;
  std::unique_ptr<AttentionBench> recent;  // the second copies of all tokens, if there is a span
  std::unique_ptr<RandomMemory> angles;    // of all positions, if keys are centred
};

// The time of one layer's attention for the last `rows` tokens of each sequence.
double AttentionUs(const AttentionBench& bench, int rows, int length) {
  std::vector<AttentionSequence> sequences;
  for (int i = 0; i < bench.sequences; ++i) {
    sequences.push_back({.first_row = i * rows, .rows = rows, .position = length - rows});
  }
  const AttentionPlan plan = PlanAttention(sequences, 4);
  const AttentionArrays arrays(sequences, plan, WideScratchBytes(plan.wide.size(), 8, bench.kDim),
                               NarrowScratchBytes(plan.shares, 8, bench.kDim));
  const RandomMemory queries(size_t{2} * bench.sequences * rows * bench.kWidth);
  const DeviceArray<Bf16> output(size_t{1} * bench.sequences * rows * bench.kWidth);
  AttentionParams params{.queries = queries.bf16(),
                         .query_stride = bench.kWidth,
                         .output = output.data(),
                         .output_stride = bench.kWidth,
                         .kv = bench.planes,
                         .tables = bench.tables.data(),
                         .table_stride = bench.pages,
                         .group = 4,
                         .scale_log2 = 0.1275f};
  arrays.SetIn(params);
  if (bench.span > 0) {
    params.span = bench.span;
    params.recent = bench.recent->planes;
    params.recent_tables = bench.recent->tables.data();
  }
  if (bench.angles != nullptr) {
    params.centre_queries = queries.bf16();
    params.angles = bench.angles->bf16();
  }
  return MedianUs([&] { Attention(params, plan.counts(), nullptr); });
}

void MeasureDecode(const Shape& shape, int batch, int length, double ceiling, Report& report) {
  const double us = AttentionUs(AttentionBench(shape, batch, length), 1, length);
  const double code_bytes = 128.0 / 8 * (CodeBits(shape.keys) + CodeBits(shape.values)) +
                            ScaleBytes(shape.keys) + ScaleBytes(shape.values);
  const int codes = shape.span > 0 ? (length - 1) / shape.span * shape.span : length;
  const double bytes = 8.0 * batch * (codes * code_bytes + (length - codes) * 2.0 * 128 * 2);
  report.measurements.push_back({.name = std::string("decode ") + shape.name + " " +
                                         std::to_string(batch) + " x " + std::to_string(length),
                                 .median_us = us,
                                 .rate = bytes / us / 1e3,
                                 .unit = "GB/s",
                                 .ceiling = ceiling,
                                 .goal = batch == 64 ? shape.goal : 0});
}

void MeasurePrefill(const Shape& shape, int length, double ceiling, Report& report) {
  const AttentionBench bench(shape, 1, length);
  const double us = AttentionUs(bench, length, length);
  const double flops = 2.0 * length * length * bench.kWidth;  // causal: half of 4
  report.measurements.push_back(
      {.name = std::string("prefill ") + shape.name + " " + std::to_string(length),
       .median_us = us,
       .rate = flops / us / 1e6,
       .unit = "TFLOP/s",
       .ceiling = ceiling,
       .goal = length == 8192 ? shape.goal : 0});
}

void MeasureSkinny(int outputs, int inputs, double ceiling, Report& report) {
  constexpr int kCopies = 4;  // more than any cache holds
  const size_t elements = size_t{1} * outputs * inputs;
  const RandomMemory weights(2 * elements * kCopies), input(size_t{2} * 64 * inputs);
  const Weight shape{.outputs = outputs, .inputs = inputs};
  const DeviceArray<float> product(size_t{64} * outputs * SkinnySlices(shape));
  for (const int rows : {1, 8, 16, 32, 64}) {
    const double us = MedianUs([&] {
                        for (int i = 0; i < kCopies; ++i) {
                          Weight weight = shape;
                          weight.data = weights.bf16() + i * elements;
                          SkinnyGemm(weight, input.bf16(), rows, product.data(), nullptr);
                        }
                      }) /
                      kCopies;
    report.measurements.push_back({.name = "gemm " + std::to_string(rows) + " x " +
                                           std::to_string(outputs) + " x " + std::to_string(inputs),
                                   .median_us = us,
                                   .rate = 2.0 * static_cast<double>(elements) / us / 1e3,
                                   .unit = "GB/s",
                                   .ceiling = ceiling,
                                   .goal = 0.85});
  }
}

struct QuantisedShape8b {
  const char* name;
  CodeForm form;
};
constexpr QuantisedShape8b kQuantisedForms[] = {
    {"fp8 g128", {.code = WeightCode::kE4m3, .order = InputOrder::kNatural}},
    {"int8 g128", {.order = InputOrder::kNatural, .zero = 128}},
    {"int4 g128",
     {.code = WeightCode::kInt4, .order = InputOrder::kNatural, .pairs = true, .zero = 8}},
    {"int4 g32",
     {.code = WeightCode::kInt4,
      .order = InputOrder::kNatural,
      .pairs = true,
      .zero = 8,
      .group = 32}},
    {"int4 g32 offsets",
     {.code = WeightCode::kInt4, .order = InputOrder::kNatural, .offsets = true, .group = 32}}};

// Measures products with quantised weights, and their expansion to bf16.
void MeasureQuantised(const QuantisedShape8b& shape, int outputs, int inputs, double ceiling,
                      Report& report) {
  const auto bytes = static_cast<size_t>(PanelsOf(outputs) * ChunksOf(inputs)) *
                     static_cast<size_t>(shape.form.chunk_bytes());
  const int copies = static_cast<int>((size_t{200} << 20) / bytes) + 2;  // more than a cache holds
  const RandomMemory codes(bytes * copies), input(size_t{2} * 64 * inputs);
  const DeviceArray<float> product(size_t{64} * outputs);
  const DeviceArray<Bf16> expanded(size_t{1} * outputs * inputs);
  const std::string name =
      std::string(shape.name) + " " + std::to_string(outputs) + " x " + std::to_string(inputs);
  const auto measure = [&](const std::string& what, double moved, double goal, const auto& run) {
    const double us =
        MedianUs([&] {
          for (int i = 0; i < copies; ++i) {
            const WeightCodes section{reinterpret_cast<const uint8_t*>(codes.data()) + i * bytes,
                                      shape.form, 0, outputs};
            run(Weight{
                .outputs = outputs, .inputs = inputs, .sections = &section, .section_count = 1});
          }
        }) /
        copies;
    report.measurements.push_back({.name = what + " " + name,
                                   .median_us = us,
                                   .rate = moved / us / 1e3,
                                   .unit = "GB/s",
                                   .ceiling = ceiling,
                                   .goal = goal});
  };
  for (const int rows : {1, 8, 16, 32, 64}) {
    measure("gemm " + std::to_string(rows), static_cast<double>(bytes), rows == 1 ? 0.70 : 0,
            [&](const Weight& weight) {
              QuantisedGemm(weight, input.bf16(), rows, product.data(), nullptr);
            });
  }
  measure("expand", static_cast<double>(bytes) + 2.0 * outputs * inputs, 0.70,
          [&](const Weight& weight) { ExpandWeight(weight, expanded.data(), nullptr); });
}

// Measures the product of a chunk of prompts.
void MeasureWide(int rows, int outputs, int inputs, double ceiling, Report& report) {
  const RandomMemory weights(size_t{2} * outputs * inputs), input(size_t{2} * rows * inputs);
  const Weight weight{.data = weights.bf16(), .outputs = outputs, .inputs = inputs};
  const DeviceArray<float> product(size_t{1} * rows * outputs * SkinnySlices(weight));
  const double us = MedianUs([&] { Gemm(weight, input.bf16(), rows, product.data(), nullptr); });
  report.measurements.push_back({.name = "gemm " + std::to_string(rows) + " x " +
                                         std::to_string(outputs) + " x " + std::to_string(inputs),
                                 .median_us = us,
                                 .rate = 2.0 * rows * outputs * inputs / us / 1e6,
                                 .unit = "TFLOP/s",
                                 .ceiling = ceiling});
}

// Layers of 64 KiB of 4,096 blocks of 2 MiB: what a prefill worker sends of a layer.
void MeasureSlab(bool checksum, double ceiling, Report& report) {
  constexpr uint32_t kBlocks = 4096, kPiece = 65536;
  constexpr int64_t kStride = 4 * kPiece;
  const RandomMemory arena(size_t{kBlocks} * kStride);
  const DeviceArray<std::byte> slab(size_t{kBlocks} * kPiece);
  const DeviceArray<uint32_t> ids(AttentionBench::Tables(kBlocks, 1));
  const DeviceArray<uint32_t> partials(SlabChunks(int64_t{kBlocks} * kPiece));
  const SlabParams params{.arena = arena.data(),
                          .block_stride = kStride,
                          .piece_bytes = kPiece,
                          .blocks = kBlocks,
                          .block_ids = ids.data(),
                          .slab = slab.data(),
                          .partials = checksum ? partials.data() : nullptr};
  DeviceInfo info;
  OpenDevice(0, &info);
  const double us = MedianUs([&] { MoveSlab(params, 3 * info.processors, nullptr); });
  report.measurements.push_back({.name = checksum ? "gather with checksum" : "gather",
                                 .median_us = us,
                                 .rate = 2.0 * kBlocks * kPiece / us / 1e3,
                                 .unit = "GB/s",
                                 .ceiling = ceiling,
                                 .goal = checksum ? 0.80 : 0});
}

// 512 blocks of 16 tokens of a layer group of an 8B model. What both directions move is the values
// and the payload, once each.
void MeasureCodec(const KvCodecCase& c, double ceiling, Report& report) {
  const KvCodecShape shape{.blocks = 512, .layers = 4, .heads = 8};
  const KvCodecBench bench(c.kind, shape);
  const RandomMemory values(size_t{2} * shape.elements());
  CopyOnDevice(bench.values(), values.data(), size_t{2} * shape.elements(), nullptr);
  const auto push = [&](const char* direction, double us) {
    const double bytes = 2.0 * shape.elements() + bench.payload_bytes();
    report.measurements.push_back({.name = std::string(c.name) + direction,
                                   .median_us = us,
                                   .rate = bytes / us / 1e3,
                                   .unit = "GB/s",
                                   .ceiling = ceiling,
                                   .goal = c.kind == KvCodecKind::kLxr ? 0 : 0.60});
  };
  push(" encode", MedianUs([&] { bench.Encode(); }));
  push(" decode", MedianUs([&] { bench.Decode(); }));
}

void MeasureAttention(const Ceilings& ceilings, Report& report) {
  for (const Shape& shape :
       {Shape{"bf16", kBf16, kBf16, 0.85}, Shape{"f8", kF8, kF8, 0.80}, Shape{"i8", kI8, kI8, 0.80},
        Shape{"i4r", kI4, kI4, 0.60}, Shape{"k8v4", kI8, kI4, 0}, Shape{"k3v3", kL3, kL3, 0},
        Shape{"k3v2", kL3, kL2, 0}, Shape{"i4r+128", kI4, kI4, 0, 128},
        Shape{"k3v3+128", kL3, kL3, 0, 128}, Shape{"k3v3c+128", kL3, kL3, 0, 128, true}}) {
    for (const auto& [batch, length] :
         {std::pair{1, 4096}, {1, 32768}, {16, 4096}, {64, 4096}, {16, 32768}}) {
      MeasureDecode(shape, batch, length, ceilings.copy, report);
    }
  }
  for (const int length : {1024, 2048, 8192}) {
    MeasurePrefill({"bf16", kBf16, kBf16, 0.60}, length, ceilings.gemm, report);
  }
  MeasurePrefill({"f8", kF8, kF8, 0}, 8192, ceilings.gemm, report);
}

void MeasureProducts(const Ceilings& ceilings, Report& report) {
  MeasureSkinny(28672, 4096, ceilings.copy, report);
  MeasureSkinny(4096, 4096, ceilings.copy, report);
  MeasureSkinny(4096, 14336, ceilings.copy, report);
  for (const int rows : {96, 128, 512, 2048, 8192}) {
    MeasureWide(rows, 28672, 4096, ceilings.gemm, report);
    MeasureWide(rows, 4096, 14336, ceilings.gemm, report);
  }
}

void MeasureQuantisedProducts(const Ceilings& ceilings, Report& report) {
  for (const QuantisedShape8b& form : kQuantisedForms) {
    MeasureQuantised(form, 28672, 4096, ceilings.copy, report);
    MeasureQuantised(form, 4096, 4096, ceilings.copy, report);
    MeasureQuantised(form, 4096, 14336, ceilings.copy, report);
  }
}

// Draws from rows of a vocabulary of 128,256, whose logits the draw reads at least once.
void MeasureDraws(const char* name, const SampleRow& draw, int rows, double ceiling,
                  Report& report) {
  constexpr int kVocabulary = 128256;
  std::vector<float> values(size_t{1} * rows * kVocabulary);
  std::mt19937_64 random(5);
  std::normal_distribution<float> normal(0, 3);
  for (float& value : values) value = normal(random);
  const DeviceArray<float> logits(values);
  std::vector<SampleRow> all(rows, draw);
  for (int row = 0; row < rows; ++row) {
    all[row].logits_row = row;
    all[row].random = random();
  }
  const DeviceArray<SampleRow> draws(all);
  const DeviceArray<SampledRow> sampled(all.size());
  const DeviceArray<std::byte> scratch(SampleScratchBytes(rows));
  const double us = MedianUs([&] {
    Sample({.logits = logits.data(),
            .vocabulary = kVocabulary,
            .draws = draws.data(),
            .sampled = sampled.data(),
            .scratch = scratch.data()},
           rows, nullptr);
  });
  report.measurements.push_back({.name = "draw " + std::to_string(rows) + ", " + name,
                                 .median_us = us,
                                 .rate = 4.0 * rows * kVocabulary / us / 1e3,
                                 .unit = "GB/s",
                                 .ceiling = ceiling});
}

void MeasureAllDraws(const Ceilings& ceilings, Report& report) {
  for (const int rows : {1, 64}) {
    MeasureDraws("greedy", {}, rows, ceilings.read, report);
    MeasureDraws("temperature 1", {.steepness = 46.2}, rows, ceilings.read, report);
    MeasureDraws("top-k 50, top-p 0.9", {.steepness = 46.2, .top_k = 50, .top_p = 3865470566}, rows,
                 ceilings.read, report);
  }
}

void MeasureSteps(const Ceilings& ceilings, Report& report) { MeasureStep(ceilings.copy, report); }

void MeasureSlabs(const Ceilings& ceilings, Report& report) {
  MeasureSlab(false, ceilings.copy, report);
  MeasureSlab(true, ceilings.copy, report);
  for (const KvCodecCase& c : KvCodecCases()) MeasureCodec(c, ceilings.copy, report);
}

}  // namespace

Ceilings MeasureCeilings(Report& report) {
  constexpr size_t kBytes = size_t{1} << 30;
  const RandomMemory from(kBytes);
  const DeviceArray<std::byte> to(kBytes);
  const double copy_us = MedianUs([&] { CopyOnDevice(to.data(), from.data(), kBytes, nullptr); });
  const double read_us = ReadCeilingUs(from.data(), kBytes);
  Ceilings ceilings{.copy = 2.0 * kBytes / copy_us / 1e3, .read = kBytes / read_us / 1e3};
  report.measurements.push_back({"copy", copy_us, ceilings.copy, "GB/s"});
  report.measurements.push_back({"read", read_us, ceilings.read, "GB/s"});
#ifdef PENSTOCK_CHECK_CUBLASLT
  constexpr int kSize = 8192;
  if (const double us = GemmCeilingUs(kSize); us > 0) {
    ceilings.gemm = 2.0 * kSize * kSize * kSize / us / 1e6;
    report.measurements.push_back({"bf16 gemm 8192", us, ceilings.gemm, "TFLOP/s"});
  }
#endif
  return ceilings;
}

void MeasureSpeed(const std::string& only, Report& report, const std::function<void()>& save) {
  const Ceilings ceilings = MeasureCeilings(report);
  const std::pair<const char*, void (*)(const Ceilings&, Report&)> kParts[] = {
      {"attention", MeasureAttention},
      {"products", MeasureProducts},
      {"quantised", MeasureQuantisedProducts},
      {"latents", MeasureLatents},
      {"experts", MeasureExperts},
      {"choices", MeasureChoices},
      {"blends", MeasureBlends},
      {"draws", MeasureAllDraws},
      {"step", MeasureSteps},
      {"slabs", MeasureSlabs}};
  for (const auto& [name, measure] : kParts) {
    save();
    if (only.empty() || only == name) measure(ceilings, report);
  }
}

}  // namespace penstock::cuda
