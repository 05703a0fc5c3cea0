#include "lab/decoding/speculative.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <optional>
#include <thread>

#include "decode_worker/engine/decode_engine.h"
#include "kernels/cpu/thread_pool.h"
#include "lab/decoding/awaited_answer.h"
#include "lab/decoding/scripted_models.h"
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
constexpr int32_t kRows = 16 + kDraftRows;  // of a step
constexpr size_t kLongAnswerTokens = 256;
constexpr int64_t kBlocks = 16 * (kPromptTokens + kAnswerTokens + 16) / 16;

using Tokens = ScriptedRunner::Tokens;

// The sources of guesses in a run.
struct Drafters {
  bool ngrams = false;
  BenchDraft* draft = nullptr;
  double mtp = 0;  // the share of right guesses of the layer for multi-token prediction; 0: none
  // The share of right guesses before each run; 0: each run is the draft model's first one.
  std::optional<double> record = {};

  bool any() const { return ngrams || draft != nullptr || mtp > 0; }
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
    if (bench->runner_.mtp() != nullptr) {
      bench->mtp_ = std::make_unique<MtpDrafter>(
          bench->runner_, bench->pool_->view(), bench->clock_,
          MtpDrafter::Options{.step_tokens = kRows,
                              .relative_cost = 2.0 / runner.kv_layout().layers});
    }
    return bench;
  }

  // Tokens per second of a batch of equal answers, all of which are the script's.
  absl::StatusOr<double> Rate(const Tokens& script, int sequences, const Drafters& drafters) {
    runner_.script = script;
    if (drafters.record) drafters.draft->Forget();
    if (drafters.record > 0) drafters.draft->Record(*drafters.record);
    runner_.mtp_wrong = WrongPlaces(script.size(), kPromptTokens, drafters.mtp);
    DecodeEngine engine({.runner = runner_,
                         .pool = *pool_,
                         .cache = *cache_,
                         .store = *store_,
                         .clock = clock_,
                         .draft = drafters.draft == nullptr ? nullptr : &drafters.draft->model(),
                         .mtp = drafters.mtp > 0 ? mtp_.get() : nullptr},
                        {.batch_max = 16,
                         .sessions_max = 16,
                         .draft_tokens = drafters.any() ? kDraftTokens : 0,
                         .draft_rows = drafters.any() ? kDraftRows : 0,
                         .ngrams = drafters.ngrams});
    std::vector<std::shared_ptr<AwaitedAnswer>> ends;
    for (int i = 0; i < sequences; ++i) {
      ends.push_back(std::make_shared<AwaitedAnswer>(clock_));
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
  std::unique_ptr<MtpDrafter> mtp_;  // null: the model has no layer for it
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
  Rows(int rounds, const Progress& progress) : rounds_(rounds), progress_(progress) {}

  void Use(Bench& bench) { bench_ = &bench; }  // for the next rows; outlives them

  // Returns the change.
  absl::StatusOr<double> Add(const std::string& name, double goal, const Tokens& script,
                             int sequences, const Drafters& drafters) {
    ASSIGN_OR_RETURN(const double change, Change(*bench_, script, sequences, drafters, rounds_));
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

  Bench* bench_ = nullptr;
  const int rounds_;
  const Progress& progress_;
  std::vector<BenchRow> rows_;
};

absl::Status MeasureNgrams(const Tokens& text, Rows& rows) {
  const Drafters ngrams{.ngrams = true};
  RETURN_IF_ERROR(rows.Add("ngram_speedup_b1", 1.8, Repeated(text), 1, ngrams).status());
  return rows.AddBatches("ngram", "worst_change", text, ngrams);
}

// Long answers: the draft model computes their prompt, too.
absl::Status MeasureModel(const Tokens& text, BenchDraft& draft, Rows& rows) {
  const Drafters drafters{.draft = &draft};
  draft.Guess(text, kPromptTokens, 0.7);
  RETURN_IF_ERROR(rows.Add("draft_model_speedup_b1", 1.6, text, 1, drafters).status());
  draft.Guess(Short(text), kPromptTokens, 0.7);
  return rows.AddBatches("draft_model", "draft_model_worst_change", Short(text), drafters);
}

// The first answers of a worker, of whose draft model nothing is known, and those after the draft
// model has become bad.
absl::Status MeasureFirstAnswers(const Tokens& text, BenchDraft& draft, Rows& rows) {
  const Drafters fresh{.draft = &draft, .record = 0};
  draft.Guess(Short(text), kPromptTokens, 0.7);
  RETURN_IF_ERROR(rows.Add("draft_model_first_change_b4", 0.97, Short(text), 4, fresh).status());
  draft.Guess(Short(text), kPromptTokens, 0.1);
  for (const int sequences : {4, 16}) {
    const std::string name = fmt::format("bad_draft_model_change_b{}", sequences);
    RETURN_IF_ERROR(rows.Add(name, 0.97, Short(text), sequences, fresh).status());
  }
  draft.Guess(text, kPromptTokens, 0.1);
  RETURN_IF_ERROR(rows.Add("bad_draft_model_change_b1", 0.97, text, 1, fresh).status());
  return rows.Add("worse_draft_model_change_b1", 0.97, text, 1, {.draft = &draft, .record = 0.7})
      .status();
}

// The layer's keys and values of the prompt are whatever the pages hold, as those of the model.
absl::Status MeasureMtp(const Tokens& text, Rows& rows) {
  RETURN_IF_ERROR(rows.Add("mtp_speedup_b1", 1.6, text, 1, {.mtp = 0.7}).status());
  RETURN_IF_ERROR(rows.AddBatches("mtp", "mtp_worst_change", Short(text), {.mtp = 0.7}));
  return rows.Add("bad_mtp_change_b1", 0.97, text, 1, {.mtp = 0.1}).status();
}

absl::Status MeasureInt4(const Tokens& text, BenchDraft& draft, Rows& rows) {
  draft.Guess(text, kPromptTokens, 0.7);
  return rows.Add("draft_model_int4_speedup_b1", 1.6, text, 1, {.draft = &draft}).status();
}

// The rows of guesses from the text and from a draft model.
absl::Status MeasureDrafts(const Tokens& text, const Exec& exec, Rows& rows,
                           const Progress& progress) {
  progress("building random weights of the TinyLlama-1.1B shape");
  const Weights weights = RandomWeights(TinyLlamaShape(), 1);
  TransformerRunner runner(weights, exec, kRows);
  ASSIGN_OR_RETURN(const auto bench, Bench::Begin(runner));
  rows.Use(*bench);
  RETURN_IF_ERROR(MeasureNgrams(Short(text), rows));
  const auto open = [&](WeightPolicy policy) {
    progress("building random weights of a tenth of the size");
    return BenchDraft::Open(exec, policy, kBlocks, weights.bytes());
  };
  ASSIGN_OR_RETURN(const auto draft, open(WeightPolicy::kCheckpoint));
  RETURN_IF_ERROR(MeasureModel(text, *draft, rows));
  RETURN_IF_ERROR(MeasureFirstAnswers(text, *draft, rows));
  ASSIGN_OR_RETURN(const auto four_bits, open(WeightPolicy::kInt4));
  return MeasureInt4(text, *four_bits, rows);
}

// The rows of a model that has a layer for multi-token prediction.
absl::Status MeasureOwnLayer(const Tokens& text, const Exec& exec, Rows& rows,
                             const Progress& progress) {
  progress("building random weights of the same shape and a layer for multi-token prediction");
  ModelConfig config = TinyLlamaShape();
  config.mtp_layers = 1;
  config.use_mtp = true;
  const Weights weights = RandomWeights(config, 1);
  TransformerRunner runner(weights, exec, kRows);
  ASSIGN_OR_RETURN(const auto bench, Bench::Begin(runner));
  rows.Use(*bench);
  return MeasureMtp(text, rows);
}

}  // namespace

absl::StatusOr<std::vector<BenchRow>> RunSpeculativeBench(
    const SpeculativeBenchOptions& options,
    const std::function<void(const std::string&)>& progress) {
  ASSIGN_OR_RETURN(const Tokens text, TextTokens(options));
  ThreadPool pool(options.threads > 0
                      ? options.threads
                      : std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  const Exec exec{.threads = &pool};
  Rows rows(options.rounds, progress);
  RETURN_IF_ERROR(MeasureDrafts(text, exec, rows, progress));
  RETURN_IF_ERROR(MeasureOwnLayer(text, exec, rows, progress));
  return rows.Take();
}

}  // namespace penstock
