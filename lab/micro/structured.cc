#include "lab/micro/structured.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <iterator>
#include <memory>
#include <span>

#include "base/metrics/metrics.h"
#include "model/grammar/grammar.h"
#include "model/grammar/schema_grammar.h"
#include "model/sampler/sampler.h"
#include "model/tokenizer/tokenizer.h"
#include "worker/grammar/grammar_host.h"
#include "worker/model/model_host.h"

namespace penstock {
namespace {

using SteadyTime = std::chrono::steady_clock;

constexpr int kSchemas = 100;
constexpr int kPromptTokens = 16;

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

absl::StatusOr<double> CompileP90(GrammarCompiler& compiler) {
  std::vector<double> took_ms;
  for (int i = 0; i < kSchemas; ++i) {
    const auto start = SteadyTime::now();
    ASSIGN_OR_RETURN(const std::string grammar, SchemaGrammar(Schema(i), /*compact=*/false));
    RETURN_IF_ERROR(compiler.Compile(grammar).status());
    took_ms.push_back(MillisecondsSince(start));
  }
  return Quantile(std::move(took_ms), 0.9);
}

// Decodes a batch of sequences step by step.
class Decoding {
 public:
  static absl::StatusOr<std::unique_ptr<Decoding>> Begin(ModelHost& host,
                                                         const StructuredBenchOptions& options,
                                                         const SamplingParams& params) {
    auto decoding = std::unique_ptr<Decoding>(new Decoding(host));
    const auto blocks = host.layout.BlocksFor(kPromptTokens + options.steps + 1);
    for (int s = 0; s < options.sequences; ++s) {
      ASSIGN_OR_RETURN(BlockCredit credit, host.pool->Reserve(blocks));
      Sequence& sequence = decoding->sequences_.emplace_back(
          Sequence{.sampler = Sampler(params, static_cast<uint32_t>(s), {})});
      sequence.blocks = credit.Take(credit.blocks());
      for (const BlockRef& block : sequence.blocks) sequence.table.push_back(block.id());
      for (uint32_t t = 0; t < kPromptTokens; ++t)
        sequence.next.push_back(1 + (t * 31 + static_cast<uint32_t>(s)) % 200);
    }
    return decoding;
  }

  absl::Status Step() {
    std::vector<SequenceStep> steps;
    for (Sequence& sequence : sequences_) {
      steps.push_back({.tokens = sequence.next,
                       .position = sequence.held,
                       .blocks = sequence.table,
                       .wants_logits = true});
    }
    const auto vocab = static_cast<size_t>(host_.runner->vocab());
    logits_.resize(sequences_.size() * vocab);
    RETURN_IF_ERROR(host_.runner->Step(
        {.sequences = steps,
         .kv = host_.pool->view(),
         .logits = {logits_.data(),
                    {static_cast<int64_t>(sequences_.size()), host_.runner->vocab()}}}));
    for (size_t s = 0; s < sequences_.size(); ++s) {
      Sequence& sequence = sequences_[s];
      sequence.held += static_cast<int32_t>(sequence.next.size());
      const SampledToken token =
          sequence.sampler.Sample(std::span(logits_).subspan(s * vocab, vocab));
      if (!sequence.sampler.failure().ok()) return sequence.sampler.failure();
      sequence.next = {token.id};
      sequence.answer.push_back(token.id);
    }
    return absl::OkStatus();
  }

  const std::vector<uint32_t>& first_answer() const { return sequences_[0].answer; }

 private:
  struct Sequence {
    Sampler sampler;
    std::vector<BlockRef> blocks = {};
    std::vector<uint32_t> table = {};
    std::vector<uint32_t> next = {};
    std::vector<uint32_t> answer = {};
    int32_t held = 0;
  };

  explicit Decoding(ModelHost& host) : host_(host) {}

  ModelHost& host_;
  std::vector<Sequence> sequences_;
  std::vector<float> logits_;
};

struct StepTimes {
  double p50_ms = 0;
  std::vector<uint32_t> answer;
};

absl::StatusOr<StepTimes> TimeSteps(ModelHost& host, const StructuredBenchOptions& options,
                                    const SamplingParams& params) {
  ASSIGN_OR_RETURN(const auto decoding, Decoding::Begin(host, options, params));
  RETURN_IF_ERROR(decoding->Step());  // the prompt
  std::vector<double> took_ms;
  for (int i = 0; i < options.steps; ++i) {
    const auto start = SteadyTime::now();
    RETURN_IF_ERROR(decoding->Step());
    took_ms.push_back(MillisecondsSince(start));
  }
  return StepTimes{.p50_ms = Quantile(std::move(took_ms), 0.5), .answer = decoding->first_answer()};
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
  ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(options.model));
  ASSIGN_OR_RETURN(
      const auto host,
      ModelHost::Open({.model = options.model, .kv_memory = "64MiB", .threads = options.threads}));
  const auto width = static_cast<uint32_t>(host->runner->vocab());
  const uint32_t stop = tokenizer->eos_id().value_or(0);
  progress("compiling");
  ASSIGN_OR_RETURN(const auto compiler, GrammarCompiler::Create(*tokenizer, width));
  ASSIGN_OR_RETURN(const double compile_ms, CompileP90(*compiler));
  ASSIGN_OR_RETURN(const std::string grammar, SchemaGrammar(kLongSchema, /*compact=*/true));
  progress("decoding");
  MetricsRegistry metrics;
  GrammarHost grammars({.model = options.model, .logits_width = width}, metrics);
  SamplingParams params{.temperature = 0.8f, .seed = 1, .stop_token_ids = {stop}};
  // Half before and half after the masked steps, so that a change of the machine's speed cancels
  // out.
  ASSIGN_OR_RETURN(const StepTimes before, TimeSteps(*host, options, params));
  ASSIGN_OR_RETURN(params.constraint, SourceOf(grammars, grammar, stop));
  ASSIGN_OR_RETURN(const StepTimes masked, TimeSteps(*host, options, params));
  params.constraint = nullptr;
  ASSIGN_OR_RETURN(const StepTimes after, TimeSteps(*host, options, params));
  ASSIGN_OR_RETURN(const auto compiled, compiler->Compile(grammar));
  ASSIGN_OR_RETURN(const std::vector<double> masks,
                   MaskTimes(compiled, masked.answer, stop, width));
  const double late = Count(metrics, "penstock_grammar_masks_late_total") /
                      Count(metrics, "penstock_grammar_mask_seconds");
  const double change = 2 * masked.p50_ms / (before.p50_ms + after.p50_ms) - 1;
  return std::vector<BenchRow>{LessIsBetter("schema_compile_ms_p90", compile_ms, "ms", 50),
                               LessIsBetter("mask_us_p50", Quantile(masks, 0.5), "us", 40),
                               LessIsBetter("mask_us_p99", Quantile(masks, 0.99), "us", 1000),
                               LessIsBetter("mask_late_share", late, "", 0.05),
                               LessIsBetter("itl_change_structured", change, "", 0.05)};
}

}  // namespace penstock
