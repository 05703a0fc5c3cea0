#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/library/prefill.h"
#include "tests/cuda/attention_case.h"
#include "tests/cuda/gpu/library_kernels.h"
#include "tests/cuda/gpu/library_suite.h"
#include "tests/cuda/gpu/timing.h"

namespace penstock::cuda {
namespace {

struct Model {
  int32_t kv_heads = 8;
  int32_t group = 4;
  int32_t head_dim = 128;
  int32_t page = 16;
  int32_t window = 0;

  int32_t heads() const { return kv_heads * group; }
  int64_t width() const { return int64_t{heads()} * head_dim; }
  float scale_log2() const { return 1.44269504f / std::sqrt(static_cast<float>(head_dim)); }
};

std::vector<uint32_t> Shuffled(int pages) {
  std::vector<uint32_t> blocks(pages);
  std::iota(blocks.begin(), blocks.end(), 0u);
  std::shuffle(blocks.begin(), blocks.end(), std::mt19937_64(2));
  return blocks;
}

// Queries, pages and results of the tokens of `sequences` sequences of up to `length` tokens each.
class Bench {
 public:
  Bench(const Model& model, int sequences, int length, int processors)
      : model_(model),
        pages_((length + model.page - 1) / model.page),
        processors_(processors),
        planes_(PlanesOfCodes({.kv_heads = model.kv_heads,
                               .head_dim = model.head_dim,
                               .page = model.page,
                               .layers = 1},
                              0, nullptr)),
        pool_(static_cast<size_t>(planes_.block_stride) / 2 * pages_ * sequences),
        tables_(Shuffled(pages_ * sequences)) {
    FillNormal(pool_.data(), static_cast<int64_t>(pool_.size()), 3, 0);
    planes_.layer = reinterpret_cast<std::byte*>(pool_.data());
  }

  PrefillParams Params(const Bf16* queries, Bf16* output) const {
    return {.queries = queries,
            .query_stride = model_.width(),
            .output = output,
            .output_stride = model_.width(),
            .kv = planes_,
            .tables = tables_.data(),
            .table_stride = pages_,
            .group = model_.group,
            .window = model_.window,
            .scale_log2 = model_.scale_log2()};
  }
  library::PrefillShape Shape() const {
    return {.heads = model_.heads(),
            .head_dim = model_.head_dim,
            .window = model_.window,
            .table_stride = pages_,
            .processors = processors_};
  }

 private:
  Model model_;
  int32_t pages_, processors_;
  KvPlanes planes_;
  DeviceArray<Bf16> pool_;
  DeviceArray<uint32_t> tables_;
};

int32_t RowsOf(std::span<const PrefillSequence> sequences) {
  int32_t rows = 0;
  for (const PrefillSequence& s : sequences) rows = std::max(rows, s.first_row + s.rows);
  return rows;
}

// A step of the library's kernel with its plan on the device.
class LibraryStep {
 public:
  LibraryStep(const PrefillParams& params, const library::PrefillShape& shape,
              std::span<const PrefillSequence> sequences)
      : LibraryStep(params, shape, sequences, library::PlanPrefill(sequences, shape)) {}

  void Launch() const { library::LaunchPrefill(call_, nullptr); }

 private:
  LibraryStep(const PrefillParams& params, const library::PrefillShape& shape,
              std::span<const PrefillSequence> sequences, const library::PrefillPlan& plan)
      : words_(plan.words),
        call_{.params = params,
              .shape = shape,
              .plan = words_.data(),
              .items = plan.items,
              .rows = RowsOf(sequences)} {}

  DeviceArray<int32_t> words_;
  library::PrefillCall call_;
};

void RunLibrary(const PrefillParams& params, const library::PrefillShape& shape,
                std::span<const PrefillSequence> sequences) {
  const LibraryStep step(params, shape, sequences);
  step.Launch();
  Synchronize(nullptr);
  ExpectNoDeviceError("the library's prefill attention");
}

// Against double precision on the host, with NaN wherever there is no token.
void CheckAgainstDoubles(AttentionCase c, int processors, Report& report) {
  c.kv.lengths = {1, 16, 17, 500, 333};
  c.rows = {1, 16, 5, 60, 1};
  const auto run = [&](const PrefillParams& params, std::span<const PrefillSequence> sequences) {
    RunLibrary(params,
               {.heads = c.kv.kv_heads * c.group,
                .head_dim = c.kv.head_dim,
                .window = c.window,
                .table_stride = params.table_stride,
                .processors = processors},
               sequences);
  };
  const AttentionResult result = RunPrefill(c, run);
  const std::string name = "library prefill d" + std::to_string(c.kv.head_dim) + " group " +
                           std::to_string(c.group) + " page " + std::to_string(c.kv.page) +
                           " window " + std::to_string(c.window);
  report.checks.push_back({name, result.deviation.relative, 5e-3});
  const bool again = RunPrefill(c, run).bits == result.bits;
  report.checks.push_back({name + " again", again ? 0 : NAN, 1});
}

// A prompt of one sequence computed whole, and then in chunks, alone and beside other sequences.
class ChunkBits {
 public:
  ChunkBits(const Model& model, int processors)
      : model_(model),
        bench_(model, 3, kLength, processors),
        queries_(size_t{kLength} * model.width()),
        want_(queries_.size()),
        step_queries_(size_t{kStepRows} * model.width()),
        step_output_(step_queries_.size()) {
    FillNormal(queries_.data(), static_cast<int64_t>(queries_.size()), 4, 0);
    FillNormal(step_queries_.data(), static_cast<int64_t>(step_queries_.size()), 5, 0);
    const PrefillSequence whole{.first_row = 0, .rows = kLength, .position = 0};
    RunLibrary(bench_.Params(queries_.data(), want_.data()), bench_.Shape(), {&whole, 1});
  }

  double DifferencesFromOurs() const {
    const DeviceArray<Bf16> ours(want_.size());
    PrefillParams params = bench_.Params(queries_.data(), ours.data());
    const std::vector<PrefillSequence> sequences = {{.first_row = 0, .rows = kLength}};
    const std::vector<PrefillTile> plan = PlanPrefill(sequences, model_.group);
    const DeviceArray<PrefillSequence> device_sequences(sequences);
    const DeviceArray<PrefillTile> tiles(plan);
    params.sequences = device_sequences.data();
    params.tiles = tiles.data();
    PrefillAttention(params, static_cast<int>(plan.size()), nullptr);
    const DeviceArray<double> sums(std::vector<double>{0, 0});
    AddErrors(want_.data(), ours.data(), static_cast<int64_t>(want_.size()), sums.data());
    const std::vector<double> read = sums.Read();
    return std::sqrt(read[0] / read[1]);
  }

  // Words that differ when the prompt's rows [begin, end) come in chunks.
  double Differences(int begin, int end, int chunk, bool others) const {
    const DeviceArray<uint64_t> count(std::vector<uint64_t>{0});
    for (int at = begin; at < end; at += chunk) {
      const int rows = std::min(chunk, end - at);
      others ? StepBesideOthers(at, rows) : StepAlone(at, rows);
      const int64_t first = others ? kRowsBefore * model_.width() : 0;
      CountDifferences(step_output_.data() + first, want_.data() + at * model_.width(),
                       rows * model_.width() / 2, count.data());
    }
    ExpectNoDeviceError("a comparison of prefill attention");
    return static_cast<double>(count.Read()[0]);
  }

  static constexpr int kLength = 3000;

 private:
  static constexpr int kRowsBefore = 77, kRowsBehind = 200;
  static constexpr int kStepRows = kLength + kRowsBefore + kRowsBehind;

  void StepAlone(int at, int rows) const {
    const PrefillSequence chunk{.first_row = 0, .rows = rows, .position = at};
    FillDevice(step_output_.data(), 0xff, rows * model_.width() * 2, nullptr);
    RunLibrary(bench_.Params(queries_.data() + at * model_.width(), step_output_.data()),
               bench_.Shape(), {&chunk, 1});
  }

  // The chunk's sequence is the first of the tables, and its rows are between the others'.
  void StepBesideOthers(int at, int rows) const {
    const std::vector<PrefillSequence> sequences = {
        {.first_row = kRowsBefore, .rows = rows, .position = at},
        {.first_row = 0, .rows = kRowsBefore, .position = 1111},
        {.first_row = kRowsBefore + rows, .rows = kRowsBehind, .position = 0}};
    const int64_t width = model_.width();
    CopyOnDevice(step_queries_.data() + kRowsBefore * width, queries_.data() + at * width,
                 rows * width * 2, nullptr);
    FillDevice(step_output_.data(), 0xff, step_output_.size() * 2, nullptr);
    RunLibrary(bench_.Params(step_queries_.data(), step_output_.data()), bench_.Shape(), sequences);
  }

  Model model_;
  Bench bench_;
  DeviceArray<Bf16> queries_, want_, step_queries_, step_output_;
};

void CheckChunks(const Model& model, int processors, Report& report) {
  const ChunkBits bits(model, processors);
  const std::string name = "library prefill d" + std::to_string(model.head_dim) + " page " +
                           std::to_string(model.page) + " window " + std::to_string(model.window);
  report.checks.push_back({name + " beside ours", bits.DifferencesFromOurs(), 1e-2});
  const auto check = [&](int begin, int end, int chunk) {
    for (const bool others : {false, true}) {
      report.checks.push_back(
          {name + " chunks of " + std::to_string(chunk) + (others ? " beside others" : ""),
           bits.Differences(begin, end, chunk, others), 1});
    }
  };
  check(0, 100, 1);
  check(ChunkBits::kLength - 40, ChunkBits::kLength, 1);
  check(0, 600, 16);
  for (const int chunk : {100, 512, 1000, 2999}) check(0, ChunkBits::kLength, chunk);
}

// Microseconds of ours and of the library's for one step.
void MeasureStep(const char* name, const Model& model, std::vector<PrefillSequence> sequences,
                 int processors, Report& report) {
  int32_t length = 0;
  double flops = 0;
  for (const PrefillSequence& s : sequences) {
    length = std::max(length, s.position + s.rows);
    flops += 4.0 * static_cast<double>(model.width()) * s.rows * (s.position + (s.rows + 1) / 2.0);
  }
  const Bench bench(model, static_cast<int>(sequences.size()), length, processors);
  const size_t elements = size_t{1} * RowsOf(sequences) * model.width();
  const DeviceArray<Bf16> queries(elements), output(elements);
  FillNormal(queries.data(), static_cast<int64_t>(elements), 6, 0);
  PrefillParams params = bench.Params(queries.data(), output.data());
  const std::vector<PrefillTile> plan = PlanPrefill(sequences, model.group);
  const DeviceArray<PrefillSequence> device_sequences(sequences);
  const DeviceArray<PrefillTile> tiles(plan);
  params.sequences = device_sequences.data();
  params.tiles = tiles.data();
  const LibraryStep step(params, bench.Shape(), sequences);
  const double ours = MedianUs(
      [&] { PrefillAttention(params, static_cast<int>(plan.size()), nullptr); }, nullptr, 5);
  const double theirs = MedianUs([&] { step.Launch(); }, nullptr, 5);
  const auto push = [&](const char* whose, double us) {
    report.measurements.push_back({.name = std::string("prefill ") + name + whose,
                                   .median_us = us,
                                   .rate = flops / us / 1e6,
                                   .unit = "TFLOP/s"});
  };
  push(" ours", ours);
  push(" library", theirs);
  std::printf("prefill %-24s ours %9.1f us (%4.0f TFLOP/s)  library %9.1f us (%4.0f TFLOP/s)\n",
              name, ours, flops / ours / 1e6, theirs, flops / theirs / 1e6);
  std::fflush(stdout);
}

}  // namespace

void CheckLibraryPrefill(int processors, Report& report) {
  for (const int dim : {64, 128}) {
    for (const int window : {0, 100}) {
      AttentionCase c{.kv = {.kv_heads = 2, .head_dim = dim}, .window = window};
      CheckAgainstDoubles(c, processors, report);
      c.kv.page = 32;
      c.group = 1;
      CheckAgainstDoubles(c, processors, report);
      c.kv.page = 64;
      c.group = 7;
      CheckAgainstDoubles(c, processors, report);
    }
    CheckChunks({.head_dim = dim}, processors, report);
    CheckChunks({.group = 3, .head_dim = dim, .page = 64}, processors, report);
    CheckChunks({.head_dim = dim, .window = 1000}, processors, report);
  }
}

void MeasureLibraryPrefill(int processors, Report& report) {
  const Model model;
  for (const int rows : {512, 1024, 2048, 8192, 32768}) {
    MeasureStep((std::to_string(rows) + " rows").c_str(), model, {{.rows = rows}}, processors,
                report);
  }
  for (const int rows : {512, 2048}) {
    MeasureStep((std::to_string(rows) + " rows behind 30K").c_str(), model,
                {{.rows = rows, .position = 30720}}, processors, report);
  }
  std::vector<PrefillSequence> many;
  for (int i = 0; i < 32; ++i) many.push_back({.first_row = 64 * i, .rows = 64, .position = 2000});
  MeasureStep("32 x 64 rows behind 2K", model, many, processors, report);
  MeasureStep("8192 rows d64", {.head_dim = 64}, {{.rows = 8192}}, processors, report);
  MeasureStep("8192 rows window 1024", {.window = 1024}, {{.rows = 8192}}, processors, report);
}

}  // namespace penstock::cuda
