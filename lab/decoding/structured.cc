#include "lab/decoding/structured.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <iterator>
#include <memory>
#include <span>
#include <thread>

#include "base/metrics/metrics.h"
#include "kernels/cpu/thread_pool.h"
#include "lab/decoding/structured_decoding.h"
#include "lab/decoding/structured_vocabulary.h"
#include "lab/fake/temp_folder.h"
#include "lab/micro/kernels_model.h"
#include "model/grammar/grammar.h"
#include "model/grammar/schema_grammar.h"
#include "model/tokenizer/tokenizer.h"
#include "worker/grammar/grammar_host.h"
#include "worker/model/model_host.h"

namespace penstock {
namespace {

using SteadyTime = std::chrono::steady_clock;

constexpr int kSchemas = 20;
constexpr int32_t kStepTokensMax = 512;

double MillisecondsSince(SteadyTime::time_point start) {
  return std::chrono::duration<double, std::milli>(SteadyTime::now() - start).count();
}

double Quantile(std::vector<double> values, double share) {
  const auto at =
      values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

constexpr std::string_view kFields = R"("idN": {"type": "integer", "minimum": 0, "maximum": 10N},
    "name": {"type": "string", "maxLength": 1N}, "when": {"type": "string", "format": "date"},
    "tags": {"type": "array", "items": {"enum": ["aN", "b", "c"]}, "maxItems": 4})";
// Orders, trees, unions and codes. FIELDS stands for the fields above.
constexpr std::string_view kShapes[] = {
    R"({"type": "object", "properties": {FIELDS}, "required": ["name", "when"]})",
    R"({"$ref": "#/$defs/t", "$defs": {"t": {"type": "object", "required": ["name"], "properties":
        {FIELDS, "kids": {"type": "array", "items": {"$ref": "#/$defs/t"}}}}}})",
    R"({"type": "array", "minItems": 1, "items": {"anyOf": [{"type": "null"},
        {"type": "object", "properties": {FIELDS}}, {"type": "number", "minimum": 0}]}})",
    R"({"type": "object", "required": ["code"], "properties":
        {FIELDS, "code": {"type": "string", "pattern": "^[A-Z]{2}-\\d{1,9}$"}}})"};
// A list that no answer ends during the measurement.
constexpr std::string_view kLongSchema = R"({"type": "array", "minItems": 250, "items":
    {"type": "object", "required": ["x", "word"], "properties":
        {"x": {"type": "integer", "minimum": 0, "maximum": 9999},
         "word": {"type": "string", "maxLength": 12}}}})";

std::string Replaced(std::string text, std::string_view from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
  return text;
}

// Each number has names and limits of its own.
std::string Schema(int number) {
  const std::string fields = Replaced(std::string(kFields), "N", std::to_string(number));
  return Replaced(std::string(kShapes[number % std::size(kShapes)]), "FIELDS", fields);
}

// The p90 of the time from a client's text to the compiled grammar, in milliseconds, of the first
// and of every later compilation of a schema.
struct CompileTimes {
  double cold_ms = 0;
  double warm_ms = 0;
};

absl::StatusOr<CompileTimes> TimeCompilation(GrammarCompiler& compiler) {
  std::vector<double> took_ms[2];
  for (std::vector<double>& times_ms : took_ms) {
    for (int i = 0; i < kSchemas; ++i) {
      const auto start = SteadyTime::now();
      ASSIGN_OR_RETURN(const std::string grammar, SchemaGrammar(Schema(i), /*compact=*/false));
      RETURN_IF_ERROR(compiler.Compile(grammar).status());
      times_ms.push_back(MillisecondsSince(start));
    }
  }
  return CompileTimes{.cold_ms = Quantile(std::move(took_ms[0]), 0.9),
                      .warm_ms = Quantile(std::move(took_ms[1]), 0.9)};
}

// The model whose steps are measured.
struct Subject {
  std::unique_ptr<TempFolder> vocabulary;  // holds a large tokenizer, or null
  std::string tokenizer;                   // directory
  std::unique_ptr<ThreadPool> threads;
  std::unique_ptr<Weights> weights;  // random, or null
  std::unique_ptr<TransformerRunner> random;
  std::unique_ptr<ModelHost> checkpoint;

  ModelRunner& runner() const { return random ? *random : *checkpoint->runner; }
};

absl::StatusOr<Subject> OpenCheckpoint(const StructuredBenchOptions& options) {
  Subject subject{.tokenizer = options.model};
  ASSIGN_OR_RETURN(
      subject.checkpoint,
      ModelHost::Open({.model = options.model, .kv_memory = "64MiB", .threads = options.threads}));
  return subject;
}

// A random model of TinyLlama-1.1B's shape with a large vocabulary and 4-bit weights.
absl::StatusOr<Subject> OpenRandom(const StructuredBenchOptions& options) {
  Subject subject{.vocabulary = std::make_unique<TempFolder>()};
  subject.tokenizer = subject.vocabulary->path();
  RETURN_IF_ERROR(
      WriteVocabulary(options.model, options.texts, options.vocabulary, subject.tokenizer));
  subject.threads = std::make_unique<ThreadPool>(
      options.threads > 0 ? options.threads
                          : static_cast<int>(std::thread::hardware_concurrency()));
  ModelConfig config = TinyLlamaShape();
  config.vocab = static_cast<int32_t>(options.vocabulary);
  const QuantisedFormat int8{.bits = 8, .group = 128}, int4{.bits = 4, .group = 128};
  subject.weights =
      std::make_unique<Weights>(RandomWeights(config, 1, 0.02f, {.layers = int4, .lm_head = int8}));
  subject.random = std::make_unique<TransformerRunner>(
      *subject.weights, Exec{.threads = subject.threads.get()}, kStepTokensMax);
  return subject;
}

// Decodes with the first `masked` sequences held to `constraint`. Returns the p50 of a step in
// milliseconds, and the first sequence's answer.
struct StepTimes {
  double p50_ms = 0;
  std::vector<uint32_t> answer;
};

absl::StatusOr<StepTimes> TimeSteps(ModelRunner& runner, const StructuredBenchOptions& options,
                                    SamplingParams params,
                                    const GrammarHost::Source& constraint = nullptr,
                                    int masked = 0) {
  std::vector<SamplingParams> sequences(static_cast<size_t>(options.sequences), params);
  for (int s = 0; s < masked; ++s) sequences[static_cast<size_t>(s)].constraint = constraint;
  StructuredDecoding decoding(runner, sequences, options.steps + 1);
  RETURN_IF_ERROR(decoding.Step());  // the prompts
  std::vector<double> took_ms;
  for (int i = 0; i < options.steps; ++i) {
    const auto start = SteadyTime::now();
    RETURN_IF_ERROR(decoding.Step());
    took_ms.push_back(MillisecondsSince(start));
  }
  return StepTimes{.p50_ms = Quantile(std::move(took_ms), 0.5), .answer = decoding.answer(0)};
}

// The times of the masks along an answer, in microseconds.
absl::StatusOr<std::vector<double>> MaskTimes(const std::shared_ptr<const CompiledGrammar>& grammar,
                                              std::span<const uint32_t> answer, uint32_t stop,
                                              uint32_t width) {
  ASSIGN_OR_RETURN(const auto mask, TokenMask::Open(grammar, {&stop, 1}));
  std::vector<uint32_t> bits(TokenMask::WordsFor(width));
  std::vector<double> took_us;
  for (const uint32_t id : answer) {
    const auto start = SteadyTime::now();
    RETURN_IF_ERROR(mask->Fill(bits));
    took_us.push_back(MillisecondsSince(start) * 1000);
    RETURN_IF_ERROR(mask->Accept(id));
  }
  return took_us;
}

absl::StatusOr<GrammarHost::Source> SourceOf(GrammarHost& host, const std::string& grammar,
                                             uint32_t stop) {
  std::promise<absl::StatusOr<GrammarHost::Source>> done;
  host.Prepare(grammar, {stop}, [&done](absl::StatusOr<GrammarHost::Source> source) {
    done.set_value(std::move(source));
  });
  return done.get_future().get();
}

double Count(const MetricsRegistry& metrics, const std::string& name) {
  for (const prometheus::MetricFamily& family : metrics.Collect()) {
    if (family.name == name)
      return family.metric.at(0).counter.value +
             static_cast<double>(family.metric.at(0).histogram.sample_count);
  }
  return 0;
}

BenchRow LessIsBetter(std::string name, double value, std::string unit, double goal) {
  return {std::move(name), value, std::move(unit), goal, value / goal};
}

}  // namespace

absl::StatusOr<std::vector<BenchRow>> RunStructuredBench(
    const StructuredBenchOptions& options,
    const std::function<void(const std::string&)>& progress) {
  progress("loading");
  ASSIGN_OR_RETURN(const Subject subject,
                   options.vocabulary > 0 ? OpenRandom(options) : OpenCheckpoint(options));
  ModelRunner& runner = subject.runner();
  ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(subject.tokenizer));
  const auto width = static_cast<uint32_t>(runner.vocab());
  const uint32_t stop = tokenizer->eos_id().value_or(0);
  progress("compiling");
  ASSIGN_OR_RETURN(const auto compiler, GrammarCompiler::Create(*tokenizer, width));
  ASSIGN_OR_RETURN(const CompileTimes compile, TimeCompilation(*compiler));
  ASSIGN_OR_RETURN(const std::string grammar, SchemaGrammar(kLongSchema, /*compact=*/true));
  progress("decoding");
  MetricsRegistry metrics;
  GrammarHost grammars({.model = subject.tokenizer, .logits_width = width}, metrics);
  const SamplingParams params{.temperature = 0.8f, .seed = 1, .stop_token_ids = {stop}};
  ASSIGN_OR_RETURN(const GrammarHost::Source source, SourceOf(grammars, grammar, stop));
  ASSIGN_OR_RETURN(const StepTimes all,
                   TimeSteps(runner, options, params, source, options.sequences));
  const double late = Count(metrics, "penstock_grammar_masks_late_total") /
                      Count(metrics, "penstock_grammar_mask_seconds");
  // Plain steps before and after the masked ones, so that a change of the machine's speed cancels
  // out.
  ASSIGN_OR_RETURN(const StepTimes before, TimeSteps(runner, options, params));
  ASSIGN_OR_RETURN(const StepTimes half,
                   TimeSteps(runner, options, params, source, options.sequences / 2));
  ASSIGN_OR_RETURN(const StepTimes after, TimeSteps(runner, options, params));
  ASSIGN_OR_RETURN(const auto compiled, compiler->Compile(grammar));
  ASSIGN_OR_RETURN(const std::vector<double> masks, MaskTimes(compiled, all.answer, stop, width));
  const double change = 2 * half.p50_ms / (before.p50_ms + after.p50_ms) - 1;
  return std::vector<BenchRow>{
      LessIsBetter("schema_compile_ms_p90", compile.cold_ms, "ms", 100),
      LessIsBetter("schema_compile_warm_ms_p90", compile.warm_ms, "ms", 10),
      LessIsBetter("mask_us_p50", Quantile(masks, 0.5), "us", 10),
      LessIsBetter("mask_us_p99", Quantile(masks, 0.99), "us", 1000),
      LessIsBetter("mask_late_share", late, "", 0.01),
      LessIsBetter("itl_change_structured", change, "", 0.03)};
}

}  // namespace penstock
