#include "lab/decoding/limited_pool_bench.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <thread>

#include "decode_worker/engine/decode_engine.h"
#include "kernels/cpu/thread_pool.h"
#include "lab/decoding/awaited_answer.h"
#include "lab/decoding/scripted_models.h"
#include "lab/micro/kernels_model.h"
#include "model/forward/transformer_runner.h"

namespace penstock {
namespace {

constexpr int32_t kLongPromptTokens = 8192;
constexpr int32_t kKeptPromptTokens = kLongPromptTokens / 4;
constexpr int32_t kShortAnswerTokens = 16;
constexpr int kResident = 8, kOffered = 32;  // sequences

struct Served {
  double tokens_per_s = 0;
  double tpot_ms = 0;  // of the slowest answer
};

ModelConfig LongShape() {
  ModelConfig config = TinyLlamaShape();
  config.max_position = kLongPromptTokens + kShortAnswerTokens + 16;
  return config;
}

// An engine's model, and a pool for kResident whole sequences.
class LimitedPool {
 public:
  static absl::StatusOr<std::unique_ptr<LimitedPool>> Open(const Exec& exec,
                                                           const MatrixForms& forms) {
    auto opened = std::unique_ptr<LimitedPool>(new LimitedPool(exec, forms));
    const KvLayout layout = opened->runner_.kv_layout();
    const int64_t each = layout.BlocksFor(kLongPromptTokens + kShortAnswerTokens);
    ASSIGN_OR_RETURN(opened->pool_, BlockPool::Create(layout, kResident * each));
    opened->FillPages();
    ASSIGN_OR_RETURN(opened->cache_,
                     KvCacheManager::Create(*opened->pool_, opened->clock_,
                                            {.model_fingerprint = 1, .kv_format = "bf16"}));
    ASSIGN_OR_RETURN(opened->store_,
                     TieredStore::Open({}, opened->pool_->view(), [](const BlockEvent&) {}));
    return opened;
  }

  // Answers to `offered` prompts whose KV is known. `evicts`: kKeptPromptTokens of each are kept.
  absl::StatusOr<Served> Serve(int offered, bool evicts) {
    DecodeEngine engine(
        {.runner = scripted_, .pool = *pool_, .cache = *cache_, .store = *store_, .clock = clock_},
        {.batch_max = kOffered, .sessions_max = kOffered, .ngrams = false});
    Answers answers;
    const TimePoint begun = clock_.Now();
    AddJobs(engine, offered, evicts, answers);
    engine.Start();
    Served served;
    // Answers are equally long: the first one to come is the first one to end.
    for (size_t ended = 0; ended < static_cast<size_t>(offered); ++ended) {
      if (ended == answers.size()) return Internal("the pool has no room for one sequence");
      RETURN_IF_ERROR(CheckAnswer(*answers[ended]));
      served.tpot_ms = std::max(served.tpot_ms, answers[ended]->TpotMs());
      AddJobs(engine, offered, evicts, answers);
    }
    const double seconds = Milliseconds(clock_.Now() - begun) / 1000;
    served.tokens_per_s = offered * (kShortAnswerTokens - 1) / seconds;
    return served;
  }

 private:
  using Answers = std::vector<std::shared_ptr<AwaitedAnswer>>;

  LimitedPool(const Exec& exec, const MatrixForms& forms)
      : weights_(RandomWeights(LongShape(), 1, 0.02f, forms)),
        runner_(weights_, exec, kOffered),
        scripted_(runner_) {
    for (uint32_t i = 0; i < kLongPromptTokens + kShortAnswerTokens; ++i) {
      scripted_.script.push_back(i * 7 % 32000);
    }
  }

  // Values of about 1, the same every prime number of them. (Pages that were never written are all
  // one page of zeros to the system, which caches hold.)
  void FillPages() {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<Bf16> values(65'537);
    for (Bf16& value : values) value = ToBf16(normal(random));
    const PagedKv& kv = pool_->view();
    const std::span<Bf16> pages(
        reinterpret_cast<Bf16*>(kv.arena),
        static_cast<size_t>(kv.blocks) * kv.layout.BlockStride() / sizeof(Bf16));
    for (size_t at = 0; at < pages.size(); at += values.size()) {
      std::copy_n(values.begin(), std::min(values.size(), pages.size() - at), &pages[at]);
    }
  }

  // As many of `offered` jobs as the pool has room for.
  void AddJobs(DecodeEngine& engine, int offered, bool evicts, Answers& answers) {
    while (answers.size() < static_cast<size_t>(offered)) {
      std::optional<DecodeJob> job = JobOf(answers.size(), evicts);
      if (!job) return;
      answers.push_back(std::make_shared<AwaitedAnswer>(clock_));
      job->sink = answers.back();
      engine.Add(*std::move(job));
    }
  }

  // Nullopt: the pool has no room for it now.
  std::optional<DecodeJob> JobOf(size_t number, bool evicts) {
    const KvLayout layout = runner_.kv_layout();
    const int32_t held = evicts ? kKeptPromptTokens : kLongPromptTokens;
    const int64_t blocks = layout.BlocksFor(held);
    std::optional<BlockCredit> credit =
        cache_->Reserve(blocks + DecodeGrowthBlocks(layout, held, kShortAnswerTokens, 1), 0);
    if (!credit) return std::nullopt;
    const std::vector<uint32_t>& script = scripted_.script;
    DecodeJob job;
    job.key = {.session = ++sessions_, .epoch = 0, .nonce = 1};
    job.tokens.assign(script.begin(), script.begin() + kLongPromptTokens);
    job.prompt_tokens = kLongPromptTokens;
    job.prompt = cache_->NameBlocks(std::to_string(number), job.tokens);
    job.sampling.temperature = 0;
    job.stop.tokens_max = kShortAnswerTokens;
    job.first.emplace_back().set_token(script[kLongPromptTokens]);
    if (evicts) {
      job.evicted = kLongPromptTokens - kKeptPromptTokens;
      job.eviction = {.method = KvEvictionMethod::kSnapKv, .keep_tokens = kKeptPromptTokens};
    }
    job.blocks = credit->Take(blocks);
    job.growth = *std::move(credit);
    return job;
  }

  absl::Status CheckAnswer(AwaitedAnswer& answer) const {
    ASSIGN_OR_RETURN(const std::vector<uint32_t> tokens, answer.Await());
    const auto expected = scripted_.script.begin() + kLongPromptTokens + 1;
    if (!std::equal(tokens.begin(), tokens.end(), expected, scripted_.script.end())) {
      return Internal("an answer is not the script's");
    }
    return absl::OkStatus();
  }

  SteadyClock clock_;
  const Weights weights_;
  TransformerRunner runner_;
  ScriptedRunner scripted_;
  uint64_t sessions_ = 0;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<KvCacheManager> cache_;
  std::unique_ptr<TieredStore> store_;
};

struct Compared {
  Served all, kept;
  double gain() const { return kept.tokens_per_s / all.tokens_per_s; }
};

absl::StatusOr<Compared> Compare(LimitedPool& pool, int offered, int rounds) {
  Compared best;
  for (int i = 0; i < rounds; ++i) {
    ASSIGN_OR_RETURN(const Served all, pool.Serve(offered, false));
    ASSIGN_OR_RETURN(const Served kept, pool.Serve(offered, true));
    if (all.tokens_per_s > best.all.tokens_per_s) best.all = all;
    if (kept.tokens_per_s > best.kept.tokens_per_s) best.kept = kept;
  }
  return best;
}

absl::Status AddRows(LimitedPool& pool, int rounds, const std::string& suffix,
                     std::vector<BenchRow>& rows) {
  ASSIGN_OR_RETURN(const Compared limited, Compare(pool, kOffered, rounds));
  ASSIGN_OR_RETURN(const Compared unlimited, Compare(pool, kResident, rounds));
  const auto add = [&](const std::string& name, double value, double goal) {
    rows.push_back({name + suffix, value, "x", goal, goal > 0 ? value / goal : 0});
  };
  add("kv_limited_goodput_gain", limited.gain(), 2);
  add("kv_limited_tpot", limited.kept.tpot_ms / limited.all.tpot_ms, 0);
  add("kv_unlimited_goodput_gain", unlimited.gain(), 1);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<BenchRow>> RunLimitedPoolBench(
    const LimitedPoolBenchOptions& options,
    const std::function<void(const std::string&)>& progress) {
  ThreadPool threads(options.threads > 0
                         ? options.threads
                         : std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  const Exec exec{.threads = &threads};
  std::vector<BenchRow> rows;
  const QuantisedFormat int8{.bits = 8, .group = 128}, int4{.bits = 4, .group = 128};
  for (const auto& [suffix, forms] : {std::pair<std::string, MatrixForms>{"", {}},
                                      {"_int4", {.layers = int4, .lm_head = int8}}}) {
    progress("32 sequences of 8,192 tokens, in memory for 8" +
             std::string(suffix.empty() ? "" : ", 4-bit weights"));
    ASSIGN_OR_RETURN(const std::unique_ptr<LimitedPool> pool, LimitedPool::Open(exec, forms));
    RETURN_IF_ERROR(AddRows(*pool, options.rounds, suffix, rows));
  }
  return rows;
}

}  // namespace penstock
