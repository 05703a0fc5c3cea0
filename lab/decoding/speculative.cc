#include "lab/decoding/speculative.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <future>
#include <memory>
#include <thread>

#include "decode_worker/decode_engine.h"
#include "kernels/cpu/thread_pool.h"
#include "lab/micro/kernels_model.h"
#include "model/forward/transformer_runner.h"
#include "model/tokenizer/tokenizer.h"

namespace penstock {
namespace {

constexpr size_t kPromptTokens = 512;
constexpr size_t kAnswerTokens = 64;
constexpr int kBatches[] = {1, 2, 4, 8, 16};
constexpr int32_t kDraftTokens = 8;  // the default of --max_draft_tokens
constexpr int32_t kDraftRows = 64;
constexpr int64_t kBlocks = 16 * (kPromptTokens + kAnswerTokens + 16) / 16;

using Tokens = std::vector<uint32_t>;

// Computes a step, and gives the script's next token the greatest logit of each row.
class ScriptedRunner final : public ModelRunner {
 public:
  explicit ScriptedRunner(ModelRunner& runner) : runner_(runner) {}

  Tokens script;

  int32_t vocab() const override { return runner_.vocab(); }
  KvLayout kv_layout() const override { return runner_.kv_layout(); }
  int32_t max_position() const override { return runner_.max_position(); }
  absl::Status Step(const StepArgs& args) override {
    RETURN_IF_ERROR(runner_.Step(args));
    int64_t row = 0;
    for (const SequenceStep& step : args.sequences) {
      if (!step.wants_logits) continue;
      const auto next = static_cast<size_t>(step.position) + step.tokens.size();
      args.logits.row(row++)[script[std::min(next, script.size() - 1)]] = 1e6f;
    }
    return absl::OkStatus();
  }

 private:
  ModelRunner& runner_;
};

// The end of one session.
class AnswerEnd final : public DecodeSink {
 public:
  void OnToken(v1::TokenOut token) override { tokens_.push_back(token.token()); }
  void OnFirst(v1::FirstTokens) override {}
  void OnEnd(absl::Status status) override { end_.set_value(std::move(status)); }
  absl::StatusOr<Tokens> Await() {
    RETURN_IF_ERROR(end_.get_future().get());
    return tokens_;
  }

 private:
  Tokens tokens_;
  std::promise<absl::Status> end_;
};

class Bench {
 public:
  static absl::StatusOr<std::unique_ptr<Bench>> Begin(ModelRunner& runner) {
    auto bench = std::unique_ptr<Bench>(new Bench(runner));
    ASSIGN_OR_RETURN(bench->pool_, BlockPool::Create(runner.kv_layout(), kBlocks));
    ASSIGN_OR_RETURN(bench->cache_,
                     KvCacheManager::Create(*bench->pool_, bench->clock_,
                                            {.model_fingerprint = 1, .kv_format = "bf16"}));
    ASSIGN_OR_RETURN(bench->store_,
                     TieredStore::Open({}, bench->pool_->view(), [](const BlockEvent&) {}));
    return bench;
  }

  // Tokens per second of a batch of equal answers, all of which are the script's.
  absl::StatusOr<double> Rate(const Tokens& script, int sequences, bool speculates) {
    runner_.script = script;
    DecodeEngine engine(
        {.runner = runner_, .pool = *pool_, .cache = *cache_, .store = *store_, .clock = clock_},
        {.batch_max = 16,
         .sessions_max = 16,
         .draft_tokens = speculates ? kDraftTokens : 0,
         .draft_rows = speculates ? kDraftRows : 0});
    std::vector<std::shared_ptr<AnswerEnd>> ends;
    for (int i = 0; i < sequences; ++i) {
      ends.push_back(std::make_shared<AnswerEnd>());
      ASSIGN_OR_RETURN(DecodeJob job, JobOf(script, i));
      job.sink = ends.back();
      engine.Add(std::move(job));
    }
    const TimePoint begun = clock_.Now();
    engine.Start();
    for (const auto& end : ends) {
      ASSIGN_OR_RETURN(const Tokens answer, end->Await());
      if (!std::equal(answer.begin(), answer.end(), script.begin() + kPromptTokens + 1)) {
        return Internal("an answer is not the script's");
      }
    }
    const double seconds = Milliseconds(clock_.Now() - begun) / 1000;
    return static_cast<double>(ends.size() * (kAnswerTokens - 1)) / seconds;
  }

 private:
  explicit Bench(ModelRunner& runner) : runner_(runner) {}

  // Its prompt's KV is whatever the pages hold: the script gives the tokens.
  absl::StatusOr<DecodeJob> JobOf(const Tokens& script, int number) {
    DecodeJob job;
    job.key = {.session = static_cast<uint64_t>(number) + 1, .epoch = 0, .nonce = 1};
    job.tokens.assign(script.begin(), script.begin() + kPromptTokens);
    job.prompt_tokens = kPromptTokens;
    job.prompt = cache_->NameBlocks(std::to_string(number), job.tokens);
    job.sampling.temperature = 0;
    job.stop.tokens_max = kAnswerTokens;
    job.first.emplace_back().set_token(script[kPromptTokens]);
    const KvLayout layout = pool_->view().layout;
    const int64_t blocks = layout.BlocksFor(kPromptTokens);
    std::optional<BlockCredit> credit =
        cache_->Reserve(blocks + DecodeGrowthBlocks(layout, kPromptTokens, kAnswerTokens, 1), 0);
    if (!credit) return Internal("the pool is too small");
    job.blocks = credit->Take(blocks);
    job.growth = *std::move(credit);
    return job;
  }

  SteadyClock clock_;
  ScriptedRunner runner_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<KvCacheManager> cache_;
  std::unique_ptr<TieredStore> store_;
};

// Tokens per second with guesses over those without, the best rounds of each.
absl::StatusOr<double> Change(Bench& bench, const Tokens& script, int sequences, int rounds) {
  double with = 0, without = 0;
  for (int i = 0; i < rounds; ++i) {
    ASSIGN_OR_RETURN(const double off, bench.Rate(script, sequences, false));
    ASSIGN_OR_RETURN(const double on, bench.Rate(script, sequences, true));
    without = std::max(without, off);
    with = std::max(with, on);
  }
  return with / without;
}

absl::StatusOr<Tokens> TextTokens(const SpeculativeBenchOptions& options) {
  ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(options.model));
  std::string text(20'000, ' ');
  std::ifstream file(options.text);
  if (!file.read(text.data(), static_cast<std::streamsize>(text.size()))) {
    return NotFound("cannot read {} bytes of {}", text.size(), options.text);
  }
  ASSIGN_OR_RETURN(Tokens tokens, tokenizer->Encode(text));
  if (tokens.size() < 2 * kPromptTokens) {
    return InvalidArgument("{} has {} tokens; the suite needs {}", options.text, tokens.size(),
                           2 * kPromptTokens);
  }
  tokens.resize(kPromptTokens + kAnswerTokens);
  return tokens;
}

Tokens Repeated(Tokens text) {
  for (size_t i = 0; i < kAnswerTokens; ++i) {
    uint32_t& token = text[kPromptTokens + i];
    token = text[200 + i];
    if (i % 24 == 23) token ^= 1;
  }
  return text;
}

}  // namespace

absl::StatusOr<std::vector<BenchRow>> RunSpeculativeBench(
    const SpeculativeBenchOptions& options,
    const std::function<void(const std::string&)>& progress) {
  ASSIGN_OR_RETURN(const Tokens text, TextTokens(options));
  progress("building random weights of the TinyLlama-1.1B shape");
  ThreadPool pool(options.threads > 0
                      ? options.threads
                      : std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  const Exec exec{.threads = &pool};
  const Weights weights = RandomWeights(TinyLlamaShape(), 1);
  TransformerRunner runner(weights, exec, 16 + kDraftRows);
  ASSIGN_OR_RETURN(const auto bench, Bench::Begin(runner));
  progress("a text that repeats");
  ASSIGN_OR_RETURN(const double speedup, Change(*bench, Repeated(text), 1, options.rounds));
  std::vector<BenchRow> rows = {{"ngram_speedup_b1", speedup, "x", 1.8, speedup / 1.8}};
  double worst = 0;
  for (const int sequences : kBatches) {
    progress(fmt::format("a batch of {}", sequences));
    ASSIGN_OR_RETURN(const double change, Change(*bench, text, sequences, options.rounds));
    rows.push_back({fmt::format("ngram_change_b{}", sequences), change, "x", 0.97, change / 0.97});
    worst = worst == 0 ? change : std::min(worst, change);
  }
  rows.push_back({"worst_change", worst, "x", 0.97, worst / 0.97});
  return rows;
}

}  // namespace penstock
