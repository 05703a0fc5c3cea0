#include "lab/decoding/speculative.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <future>
#include <memory>
#include <random>
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
constexpr int32_t kDraftStepTokens = 512;
constexpr size_t kLongAnswerTokens = 256;
constexpr int64_t kBlocks = 16 * (kPromptTokens + kAnswerTokens + 16) / 16;

using Tokens = std::vector<uint32_t>;

// A tenth of TinyLlama-1.1B: 112 million weights.
ModelConfig TenthShape() {
  ModelConfig config = TinyLlamaShape();
  config.layers = 10;
  config.hidden = 768;
  config.intermediate = 2048;
  config.heads = 12;
  return config;
}

// What guesses the answers of a run.
struct Drafters {
  bool ngrams = false;
  DraftModel* model = nullptr;

  bool any() const { return ngrams || model != nullptr; }
};

// Computes a step, and gives the script's next token the greatest logit of each row.
class ScriptedRunner final : public ModelRunner {
 public:
  explicit ScriptedRunner(ModelRunner& runner) : runner_(runner) {}

  Tokens script;
  std::vector<bool> wrong;  // by the token's place in the script; empty: none is

  int32_t vocab() const override { return runner_.vocab(); }
  KvLayout kv_layout() const override { return runner_.kv_layout(); }
  int32_t max_position() const override { return runner_.max_position(); }
  absl::Status Step(const StepArgs& args) override {
    RETURN_IF_ERROR(runner_.Step(args));
    int64_t row = 0;
    for (const SequenceStep& step : args.sequences) {
      if (!step.wants_logits) continue;
      const auto next = static_cast<size_t>(step.position) + step.tokens.size();
      args.logits.row(row++)[TokenAt(std::min(next, script.size() - 1))] = 1e6f;
    }
    return absl::OkStatus();
  }

 private:
  uint32_t TokenAt(size_t place) const {
    return !wrong.empty() && wrong[place] ? script[place] ^ 1 : script[place];
  }

  ModelRunner& runner_;
};

// A draft model with random weights that computes every step, and then guesses a given share of the
// script's tokens right, at random places.
class BenchDraft {
 public:
  static absl::StatusOr<std::unique_ptr<BenchDraft>> Open(const Exec& exec, MatrixForms forms,
                                                          size_t target_bytes) {
    auto draft = std::unique_ptr<BenchDraft>(new BenchDraft(exec, forms));
    KvLayout layout = draft->runner_.kv_layout();
    ASSIGN_OR_RETURN(draft->pool_, BlockPool::Create(layout, kBlocks));
    draft->model_ = std::make_unique<DraftModel>(
        draft->scripted_, *draft->pool_, draft->clock_,
        DraftModel::Options{.step_tokens = kDraftStepTokens,
                            .vocab = draft->runner_.vocab(),
                            .relative_cost = static_cast<double>(draft->weights_.bytes()) /
                                             static_cast<double>(target_bytes)});
    return draft;
  }

  void Guess(const Tokens& script, double share) {
    scripted_.script = script;
    scripted_.wrong.assign(script.size(), false);
    const auto answer = scripted_.wrong.begin() + kPromptTokens;
    const auto size = static_cast<double>(scripted_.wrong.end() - answer);
    std::fill_n(answer, static_cast<std::ptrdiff_t>(std::lround(size * (1 - share))), true);
    std::shuffle(answer, scripted_.wrong.end(), std::mt19937(1));
  }
  DraftModel& model() { return *model_; }

 private:
  BenchDraft(const Exec& exec, MatrixForms forms)
      : weights_(RandomWeights(TenthShape(), 2, 0.02f, forms)),
        runner_(weights_, exec, kDraftStepTokens),
        scripted_(runner_) {}

  SteadyClock clock_;
  const Weights weights_;
  TransformerRunner runner_;
  ScriptedRunner scripted_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<DraftModel> model_;
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
  absl::StatusOr<double> Rate(const Tokens& script, int sequences, const Drafters& drafters) {
    runner_.script = script;
    DecodeEngine engine({.runner = runner_,
                         .pool = *pool_,
                         .cache = *cache_,
                         .store = *store_,
                         .clock = clock_,
                         .draft = drafters.model},
                        {.batch_max = 16,
                         .sessions_max = 16,
                         .draft_tokens = drafters.any() ? kDraftTokens : 0,
                         .draft_rows = drafters.any() ? kDraftRows : 0,
                         .ngrams = drafters.ngrams});
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
    return static_cast<double>(ends.size() * (script.size() - kPromptTokens - 1)) / seconds;
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
    const size_t answer = script.size() - kPromptTokens;
    job.stop.tokens_max = static_cast<int32_t>(answer);
    job.first.emplace_back().set_token(script[kPromptTokens]);
    const KvLayout layout = pool_->view().layout;
    const int64_t blocks = layout.BlocksFor(kPromptTokens);
    std::optional<BlockCredit> credit = cache_->Reserve(
        blocks + DecodeGrowthBlocks(layout, kPromptTokens, static_cast<int64_t>(answer), 1), 0);
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
absl::StatusOr<double> Change(Bench& bench, const Tokens& script, int sequences,
                              const Drafters& drafters, int rounds) {
  double with = 0, without = 0;
  for (int i = 0; i < rounds; ++i) {
    ASSIGN_OR_RETURN(const double off, bench.Rate(script, sequences, {}));
    ASSIGN_OR_RETURN(const double on, bench.Rate(script, sequences, drafters));
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
  tokens.resize(kPromptTokens + kLongAnswerTokens);
  return tokens;
}

Tokens Short(Tokens text) {
  text.resize(kPromptTokens + kAnswerTokens);
  return text;
}

Tokens Repeated(Tokens text) {
  for (size_t i = 0; i < kAnswerTokens; ++i) {
    uint32_t& token = text[kPromptTokens + i];
    token = text[200 + i];
    if (i % 24 == 23) token ^= 1;
  }
  return text;
}

using Progress = std::function<void(const std::string&)>;

// Measures the rows of one report.
class Rows {
 public:
  Rows(Bench& bench, int rounds, const Progress& progress)
      : bench_(bench), rounds_(rounds), progress_(progress) {}

  // Returns the change.
  absl::StatusOr<double> Add(const std::string& name, double goal, const Tokens& script,
                             int sequences, const Drafters& drafters) {
    ASSIGN_OR_RETURN(const double change, Change(bench_, script, sequences, drafters, rounds_));
    Put(name, change, goal);
    return change;
  }
  // A row for each batch, and one for the worst of them.
  absl::Status AddBatches(const std::string& prefix, const std::string& worst_name,
                          const Tokens& script, const Drafters& drafters) {
    double worst = 0;
    for (const int sequences : kBatches) {
      ASSIGN_OR_RETURN(const double change, Add(fmt::format("{}_change_b{}", prefix, sequences),
                                                0.97, script, sequences, drafters));
      worst = worst == 0 ? change : std::min(worst, change);
    }
    Put(worst_name, worst, 0.97);
    return absl::OkStatus();
  }
  std::vector<BenchRow> Take() { return std::move(rows_); }

 private:
  void Put(const std::string& name, double value, double goal) {
    progress_(fmt::format("{} {:.3f}", name, value));
    rows_.push_back({name, value, "x", goal, value / goal});
  }

  Bench& bench_;
  const int rounds_;
  const Progress& progress_;
  std::vector<BenchRow> rows_;
};

absl::Status MeasureNgrams(const Tokens& text, Rows& rows) {
  const Drafters ngrams{.ngrams = true, .model = nullptr};
  RETURN_IF_ERROR(rows.Add("ngram_speedup_b1", 1.8, Repeated(text), 1, ngrams).status());
  return rows.AddBatches("ngram", "worst_change", text, ngrams);
}

// Long answers: the draft model computes their prompt, too.
absl::Status MeasureModel(const Tokens& text, BenchDraft& draft, Rows& rows) {
  const Drafters drafters{.ngrams = false, .model = &draft.model()};
  draft.Guess(text, 0.7);
  RETURN_IF_ERROR(rows.Add("draft_model_speedup_b1", 1.6, text, 1, drafters).status());
  draft.Guess(Short(text), 0.7);
  RETURN_IF_ERROR(
      rows.AddBatches("draft_model", "draft_model_worst_change", Short(text), drafters));
  draft.Guess(text, 0.1);
  return rows.Add("bad_draft_model_change_b1", 0.97, text, 1, drafters).status();
}

absl::Status MeasureInt4(const Tokens& text, BenchDraft& draft, Rows& rows) {
  draft.Guess(text, 0.7);
  return rows
      .Add("draft_model_int4_speedup_b1", 1.6, text, 1, {.ngrams = false, .model = &draft.model()})
      .status();
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
  Rows rows(*bench, options.rounds, progress);
  RETURN_IF_ERROR(MeasureNgrams(Short(text), rows));
  const auto open = [&](WeightPolicy weights_form) {
    progress("building random weights of a tenth of the size");
    return BenchDraft::Open(exec, FormsOf(weights_form), weights.bytes());
  };
  ASSIGN_OR_RETURN(const auto draft, open(WeightPolicy::kCheckpoint));
  RETURN_IF_ERROR(MeasureModel(text, *draft, rows));
  ASSIGN_OR_RETURN(const auto four_bits, open(WeightPolicy::kInt4));
  RETURN_IF_ERROR(MeasureInt4(text, *four_bits, rows));
  return rows.Take();
}

}  // namespace penstock
