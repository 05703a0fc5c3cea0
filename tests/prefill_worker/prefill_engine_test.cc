// A prefill engine without periodic beats: what a prompt waits for wakes it, or the test fails.

#include "prefill_worker/prefill_engine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <future>
#include <thread>

#include "kernels/eviction/kv_evictor.h"
#include "kvstore/handoff/handoff_types.h"
#include "kvstore/wire/wire_loopback.h"

namespace penstock {
namespace {

constexpr KvLayout kLayout{.layers = 1, .kv_heads = 1, .head_dim = 8, .block_tokens = 16};
constexpr int64_t kPool = 20;
constexpr int64_t kPromptBlocks = 8;
constexpr uint32_t kVocab = 32;

// A step takes a millisecond for each token. The token after t is t with logit 1, others have 0.
class FakeRunner final : public ModelRunner, public MtpLayer {
 public:
  explicit FakeRunner(ManualClock& clock) : clock_(clock) {}
  int32_t vocab() const override { return kVocab; }
  KvLayout kv_layout() const override { return kLayout; }
  int32_t max_position() const override { return 4096; }
  int32_t hidden_size() const override { return 2; }
  MtpLayer* mtp() override { return has_mtp_ ? this : nullptr; }
  absl::Status StepMtp(const StepArgs&) override { return Internal("no guess is made here"); }
  std::optional<EvictionAttention> eviction_attention() const override {
    return EvictionAttention{.heads = 1, .scale = 1, .cap = 0, .evictor = evictor_.get()};
  }
  absl::Status Step(const StepArgs& args) override {
    if (before_step_) before_step_();
    if (args.on_queries) GiveQueries(args);
    int64_t row = 0;
    for (const SequenceStep& step : args.sequences) {
      steps_.push_back({.position = step.position,
                        .tokens = static_cast<int32_t>(step.tokens.size()),
                        .evicted = step.evicted,
                        .blocks = step.blocks.size()});
      clock_.Advance(std::chrono::milliseconds(step.tokens.size()));
      if (step.fills_mtp) before_.emplace_back(step.before.begin(), step.before.end());
      for (size_t i = 0; i < step.tokens.size() && !step.hidden_sum.empty(); ++i) {
        step.hidden_sum[0] += step.tokens[i];
        step.hidden_sum[1] += step.position + static_cast<double>(i) + 1;
      }
      if (!step.hidden.empty()) {
        step.hidden[0] = static_cast<float>(step.tokens.back());
        step.hidden[1] = static_cast<float>(step.position) + static_cast<float>(step.tokens.size());
      }
      if (!step.wants_logits) continue;
      float* const logits = args.logits.row(row++);
      std::fill_n(logits, kVocab, 0.0f);
      logits[step.tokens.back()] = 1.0f;
    }
    return absl::OkStatus();
  }

  struct Seen {
    int32_t position, tokens, evicted;
    size_t blocks;
    bool operator==(const Seen&) const = default;
  };

  bool has_mtp_ = false;
  std::vector<std::vector<float>> before_;  // of steps that fill the layer for MTP
  std::function<void()> before_step_;       // on the engine's thread
  std::vector<Seen> steps_;                 // while no prompt is computed

 private:
  static void GiveQueries(const StepArgs& args) {
    int64_t rows = 0;
    for (const SequenceStep& step : args.sequences) rows += std::ssize(step.tokens);
    const std::vector<float> queries(static_cast<size_t>(rows * kLayout.head_dim), 0.5f);
    for (int32_t layer = 0; layer < kLayout.layers; ++layer) {
      args.on_queries(layer, {queries.data(), {rows, kLayout.head_dim}});
    }
  }

  ManualClock& clock_;
  const std::unique_ptr<KvEvictor> evictor_ = std::make_unique<CpuEvictor>(Exec());
};

class Sink final : public PrefillSink {
 public:
  void OnScores(v1::PromptScores scores) override { scores_.push_back(std::move(scores)); }
  void OnHiddenState(v1::HiddenState state) override { hidden_ = std::move(state); }
  void OnFirst(v1::FirstTokens first, bool) override { result_.set_value(std::move(first)); }
  void OnFailed(absl::Status status) override { result_.set_value(std::move(status)); }
  absl::StatusOr<v1::FirstTokens> Await() {
    auto future = result_.get_future();
    if (future.wait_for(std::chrono::seconds(60)) == std::future_status::ready) return future.get();
    return DeadlineExceeded("the engine has computed nothing for a minute");
  }
  const std::vector<v1::PromptScores>& scores() const { return scores_; }  // after Await
  const v1::HiddenState& hidden() const { return hidden_; }                // after Await

 private:
  std::vector<v1::PromptScores> scores_;
  v1::HiddenState hidden_;
  std::promise<absl::StatusOr<v1::FirstTokens>> result_;
};

class NoReceiver final : public WireReceiver {
 public:
  absl::StatusOr<std::byte*> OnAnnounced(std::span<const std::byte>, size_t) override {
    ++announced_;
    return Unavailable("nothing lands here");
  }
  void OnLanded(std::span<const std::byte>, std::span<std::byte>) override {}
  void OnLost(std::span<const std::byte>, std::byte*) override {}
  std::atomic<int> announced_ = 0;
};

class SilentChannel final : public HandoffSenderChannel {
 public:
  void Send(const v1::HandoffSenderMessage&) override {}
  void Close() override {}
};

class PrefillEngineTest : public ::testing::Test {
 protected:
  void Make(int64_t blocks_kept_for_credited = 0, int32_t chunk_tokens = 512) {
    TieredStore::Options options{.dram_bytes = 2 * kPool * kLayout.BlockStride()};
    options.on_restore_time = [this](Tier, Duration) {
      if (before_restored_) before_restored_();
    };
    store_ = *TieredStore::Open(options, pool_->view(),
                                [this](const BlockEvent& event) { cache_->OnStoreEvent(event); });
    store_->Start();
    cache_->AttachStore(store_.get());
    sender_.Launch();
    engine_ = std::make_unique<PrefillEngine>(
        runner_, *pool_, *cache_, sender_, clock_,
        PrefillEngine::Options{.chunk_tokens = chunk_tokens,
                               .blocks_kept_for_credited = blocks_kept_for_credited,
                               .progress = &progress_,
                               .idle_beat = std::chrono::hours(1)});
    engine_->Start();
  }
  void TearDown() override {
    engine_->Stop();
    cache_->AttachStore(nullptr);
    store_->Stop();
    sender_.Stop();
    engine_.reset();
    cache_.reset();
    store_.reset();
  }

  std::shared_ptr<Sink> Submit(const HandoffKey& key = {.session = 1}, uint32_t token = 7) {
    return Submit({.key = key, .tokens = std::vector<uint32_t>(kPromptBlocks * 16, token)});
  }
  std::shared_ptr<Sink> Submit(PrefillJob job) {
    auto sink = std::make_shared<Sink>();
    job.prompt = cache_->NameBlocks("", job.tokens);
    if (job.prompt_tokens == 0) job.prompt_tokens = job.tokens.size();
    job.stop.tokens_max = 1;
    job.sink = sink;
    EXPECT_TRUE(engine_->Submit(std::move(job)).ok());
    return sink;
  }
  void StartHandoff(const HandoffKey& key) {
    ASSERT_TRUE(sender_
                    .Start({.key = key,
                            .tokens = kPromptBlocks * 16,
                            .channel = std::make_shared<SilentChannel>(),
                            .on_committed = [](const KvSendStats&) {},
                            .on_failed = [](const absl::Status&) {},
                            .on_credited = [this] { engine_->OnCredited(); }})
                    .ok());
  }
  // As the decode worker does.
  void GiveCredit(const HandoffKey& key) {
    v1::HandoffReceiverMessage message;
    SetSessionKey(key, message.mutable_key());
    message.mutable_credit()->set_wire_address(wire_->address());
    sender_.OnControl(key, message);
  }
  // The engine has made the turn that follows the `before`-th beat, and waits.
  void AwaitIdle(uint64_t before) {
    while (progress_.beats() <= before) std::this_thread::yield();
  }

  ManualClock clock_;
  FakeRunner runner_{clock_};
  Progress progress_;
  std::function<void()> before_restored_;  // on the store's thread
  std::unique_ptr<BlockPool> pool_ = *BlockPool::Create(kLayout, kPool);
  std::unique_ptr<KvCacheManager> cache_ =
      *KvCacheManager::Create(*pool_, clock_, {.model_fingerprint = 1, .kv_format = "bf16"});
  LoopbackHub hub_;
  NoReceiver receiver_;
  std::unique_ptr<Wire> wire_ = MakeLoopbackWire(hub_, receiver_);
  KvSender sender_{{}, {.model_fingerprint = 1, .layout = kLayout}, clock_, *wire_, pool_->view()};
  std::unique_ptr<TieredStore> store_;
  std::unique_ptr<PrefillEngine> engine_;
};

TEST_F(PrefillEngineTest, ARestoreWakesTheEngine) {
  Make();
  ASSERT_TRUE(Submit()->Await().ok());
  while (!cache_->Reserve(kPool)) std::this_thread::yield();  // Evicts the prompt to host memory.
  AwaitIdle(1);
  const uint64_t before = progress_.beats();
  before_restored_ = [&] { AwaitIdle(before); };
  const auto first = Submit()->Await();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->cached_tokens(), (kPromptBlocks - 1) * 16);
}

TEST_F(PrefillEngineTest, BlocksThatComeFreeWakeTheEngine) {
  Make();
  for (uint32_t i = 0; i < 20; ++i) {
    cache_->Clear();
    auto others = cache_->Reserve(kPool - kPromptBlocks + 1);
    ASSERT_TRUE(others.has_value());
    AwaitIdle(0);
    const uint64_t before = progress_.beats();
    const auto sink = Submit();
    if (i % 2 == 0) AwaitIdle(before);
    others.reset();
    const auto first = sink->Await();
    ASSERT_TRUE(first.ok()) << first.status();
    while (engine_->prompts() > 0) std::this_thread::yield();
  }
}

TEST_F(PrefillEngineTest, CreditWakesTheEngine) {
  Make(/*blocks_kept_for_credited=*/kPool);
  const HandoffKey key{.session = 5};
  AwaitIdle(0);
  const uint64_t before = progress_.beats();
  StartHandoff(key);
  const auto sink = Submit(key);
  AwaitIdle(before);
  GiveCredit(key);
  const auto first = sink->Await();
  ASSERT_TRUE(first.ok()) << first.status();
}

// The prompt's last 32 tokens are one chunk, and after a failover the answer so far is computed
// behind what was kept. What others find in the cache is the prompt alone, and that is exact.
TEST_F(PrefillEngineTest, AnEvictionIsBehindThePromptAndBeforeTheAnswer) {
  Make(/*blocks_kept_for_credited=*/0, /*chunk_tokens=*/40);
  constexpr int32_t kPrompt = 128, kAnswered = 50;
  PrefillJob job{.key = {.session = 1}, .tokens = std::vector<uint32_t>(kPrompt + kAnswered, 7)};
  job.prompt_tokens = kPrompt;
  job.eviction = EvictionOf("snapkv:72");
  const PromptBlocks all = cache_->NameBlocks("", job.tokens);
  const auto first = Submit(std::move(job))->Await();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->evicted_tokens(), 56u);
  while (engine_->prompts() > 0) std::this_thread::yield();
  EXPECT_EQ(runner_.steps_, (std::vector<FakeRunner::Seen>{{0, 40, 0, 8},
                                                           {40, 40, 0, 8},
                                                           {80, 16, 0, 8},
                                                           {96, 32, 0, 8},
                                                           {128, 40, 56, 8},
                                                           {168, 10, 56, 8}}));
  EXPECT_EQ(engine_->evicted_tokens(), 56);
  EXPECT_EQ(cache_->CountLeading(all), kPrompt / 16);
  EXPECT_EQ(pool_->blocks_free() + pool_->blocks_cached(), kPool);
}

// An answer that was compacted while it was decoded is compacted again where it was.
TEST_F(PrefillEngineTest, AnAnswerIsCompactedWhereItWas) {
  Make(/*blocks_kept_for_credited=*/0, /*chunk_tokens=*/40);
  constexpr int32_t kPrompt = 80, kAnswered = 75;
  PrefillJob job{.key = {.session = 1}, .tokens = std::vector<uint32_t>(kPrompt + kAnswered, 7)};
  job.prompt_tokens = kPrompt;
  job.eviction = EvictionOf("tova:64+32");
  const PromptBlocks all = cache_->NameBlocks("", job.tokens);
  const auto first = Submit(std::move(job))->Await();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->evicted_tokens(), 16u);
  while (engine_->prompts() > 0) std::this_thread::yield();
  EXPECT_EQ(
      runner_.steps_,
      (std::vector<FakeRunner::Seen>{
          {0, 40, 0, 5}, {40, 40, 0, 5}, {80, 32, 16, 6}, {112, 32, 48, 6}, {144, 11, 80, 6}}));
  EXPECT_EQ(cache_->CountLeading(all), kPrompt / 16);
  EXPECT_EQ(pool_->blocks_free() + pool_->blocks_cached(), kPool);
}

// H2O observes all tokens between two compactions, which may be in several chunks.
TEST_F(PrefillEngineTest, ACompactionMayObserveSeveralChunks) {
  Make(/*blocks_kept_for_credited=*/0, /*chunk_tokens=*/20);
  constexpr int32_t kPrompt = 80, kAnswered = 75;
  PrefillJob job{.key = {.session = 1}, .tokens = std::vector<uint32_t>(kPrompt + kAnswered, 7)};
  job.prompt_tokens = kPrompt;
  job.eviction = EvictionOf("h2o:64+32");
  const auto first = Submit(std::move(job))->Await();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->evicted_tokens(), 16u);
  while (engine_->prompts() > 0) std::this_thread::yield();
  EXPECT_EQ(runner_.steps_, (std::vector<FakeRunner::Seen>{{0, 20, 0, 5},
                                                           {20, 20, 0, 5},
                                                           {40, 20, 0, 5},
                                                           {60, 20, 0, 5},
                                                           {80, 20, 16, 6},
                                                           {100, 12, 16, 6},
                                                           {112, 20, 48, 6},
                                                           {132, 12, 48, 6},
                                                           {144, 11, 80, 6}}));
  EXPECT_EQ(pool_->blocks_free() + pool_->blocks_cached(), kPool);
}

// The observed tokens are computed although they are cached.
TEST_F(PrefillEngineTest, AnEvictionUsesTheCacheUpToItsWindow) {
  Make();
  ASSERT_TRUE(Submit()->Await().ok());
  while (engine_->prompts() > 0) std::this_thread::yield();
  runner_.steps_.clear();
  PrefillJob job{.key = {.session = 2}, .tokens = std::vector<uint32_t>(kPromptBlocks * 16, 7)};
  job.eviction = EvictionOf("snapkv:64");
  const auto first = Submit(std::move(job))->Await();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->cached_tokens(), 96u);
  while (engine_->prompts() > 0) std::this_thread::yield();
  EXPECT_EQ(runner_.steps_, (std::vector<FakeRunner::Seen>{{96, 32, 0, 8}}));
}

// Sums of attention need every query of the prompt, so nothing comes from the cache.
TEST_F(PrefillEngineTest, SumsOfAttentionUseNoCachedPrefix) {
  Make();
  ASSERT_TRUE(Submit()->Await().ok());
  while (engine_->prompts() > 0) std::this_thread::yield();
  PrefillJob job{.key = {.session = 2}, .tokens = std::vector<uint32_t>(kPromptBlocks * 16, 7)};
  job.eviction = EvictionOf("h2o:64");
  const auto first = Submit(std::move(job))->Await();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->cached_tokens(), 0u);
  EXPECT_EQ(first->evicted_tokens(), 64u);
}

// Every token but the first has a score, in order, although its prefix is cached; a step scores at
// most kScoredTokensMax.
TEST_F(PrefillEngineTest, ScoresEveryTokenOfAPrompt) {
  Make();
  std::vector<uint32_t> tokens(kPromptBlocks * 16, 7);
  for (size_t i = 2; i < tokens.size(); i += 3) tokens[i] = 9;
  ASSERT_TRUE(Submit({.key = {.session = 1}, .tokens = tokens})->Await().ok());
  const auto sink = Submit(
      {.key = {.session = 2}, .tokens = tokens, .sampling = {.temperature = 0}, .score_top = 2});
  const auto first = sink->Await();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->cached_tokens(), 0u);
  EXPECT_EQ(first->tokens(0).token(), tokens.back());
  const double total = std::log(std::exp(1.0) + kVocab - 1);
  uint32_t position = 1;
  for (const v1::PromptScores& scores : sink->scores()) {
    EXPECT_EQ(scores.first_position(), position);
    EXPECT_LE(scores.tokens_size(), PrefillScheduler::kScoredTokensMax);
    for (const v1::TokenScore& score : scores.tokens()) {
      const bool repeats = tokens[position] == tokens[position - 1];
      EXPECT_NEAR(score.logprob(), (repeats ? 1 : 0) - total, 1e-6) << position;
      ASSERT_EQ(score.top_size(), 2);
      EXPECT_EQ(score.top(0).token(), tokens[position - 1]);
      EXPECT_EQ(score.top(1).token(), 0u);
      ++position;
    }
  }
  EXPECT_EQ(position, tokens.size());
  EXPECT_EQ(sink->scores().size(), 2u) << "128 tokens are two steps";
}

// The prefix is cached, and the prompt has two chunks.
TEST_F(PrefillEngineTest, TheHiddenStateIsTheLastTokens) {
  Make(/*blocks_kept_for_credited=*/0, /*chunk_tokens=*/40);
  std::vector<uint32_t> tokens(kPromptBlocks * 16, 7);
  tokens.back() = 5;
  ASSERT_TRUE(
      Submit({.key = {.session = 1}, .tokens = std::vector<uint32_t>(64, 7)})->Await().ok());
  const auto sink = Submit({.key = {.session = 2}, .tokens = tokens, .hidden_state = true});
  const auto first = sink->Await();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->cached_tokens(), 64u);
  EXPECT_EQ(std::vector<float>(sink->hidden().values().begin(), sink->hidden().values().end()),
            (std::vector<float>{5, static_cast<float>(tokens.size())}));
}

// The prefix is cached, and computed again in two chunks.
TEST_F(PrefillEngineTest, AMeanHasTheHiddenStatesOfAllTokens) {
  Make(/*blocks_kept_for_credited=*/0, /*chunk_tokens=*/40);
  ASSERT_TRUE(
      Submit({.key = {.session = 1}, .tokens = std::vector<uint32_t>(64, 7)})->Await().ok());
  const auto sink = Submit({.key = {.session = 2},
                            .tokens = std::vector<uint32_t>(65, 7),
                            .hidden_state = true,
                            .hidden_mean = true});
  const auto first = sink->Await();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->cached_tokens(), 0u);
  EXPECT_TRUE(sink->hidden().mean());
  EXPECT_EQ(std::vector<float>(sink->hidden().values().begin(), sink->hidden().values().end()),
            (std::vector<float>{7, 33}));
}

// The layer for multi-token prediction gets the hidden state behind one chunk in the next; zeros
// behind a cached prefix.
TEST_F(PrefillEngineTest, HiddenStatesGoFromChunkToChunk) {
  runner_.has_mtp_ = true;
  Make(/*blocks_kept_for_credited=*/0, /*chunk_tokens=*/40);
  std::vector<uint32_t> tokens(100);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint32_t>(i % 31);
  ASSERT_TRUE(Submit({.key = {.session = 1}, .tokens = tokens})->Await().ok());
  using States = std::vector<std::vector<float>>;
  EXPECT_EQ(runner_.before_, (States{{0, 0}, {39 % 31, 40}, {79 % 31, 80}}));
  runner_.before_.clear();
  const auto sink = Submit({.key = {.session = 2}, .tokens = tokens, .hidden_state = true});
  const auto first = sink->Await();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->cached_tokens(), 96u);
  EXPECT_EQ(runner_.before_, (States{{0, 0}}));
  EXPECT_EQ(std::vector<float>(sink->hidden().values().begin(), sink->hidden().values().end()),
            (std::vector<float>{99 % 31, 100}));
}

// The decode worker has given credit, but no choice has a second token.
TEST_F(PrefillEngineTest, NoKvIsSentForOneToken) {
  Make();
  const HandoffKey key{.session = 5};
  StartHandoff(key);
  GiveCredit(key);
  for (int32_t i = 0; i < 2; ++i) {  // computed, and then cached
    ASSERT_TRUE(Submit(key)->Await().ok());
    while (engine_->prompts() > 0) std::this_thread::yield();
  }
  EXPECT_EQ(receiver_.announced_, 0);
}

// Both prompts have 128 tokens and their steps at most 100, so that some steps compute parts of
// both.
TEST_F(PrefillEngineTest, TheComputeOfAPromptIsItsPartOfItsSteps) {
  Make(/*blocks_kept_for_credited=*/0, /*chunk_tokens=*/100);
  std::promise<void> both;
  runner_.before_step_ = [&, waited = false]() mutable {
    if (!std::exchange(waited, true)) both.get_future().wait();
  };
  const auto one = Submit({.session = 1});
  const auto two = Submit({.session = 2}, /*token=*/8);
  both.set_value();
  for (const auto& sink : {one, two}) {
    const auto first = sink->Await();
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_EQ(first->compute_ms(), kPromptBlocks * 16);
    EXPECT_GT(first->prefill_ms(), first->compute_ms());
  }
}

}  // namespace
}  // namespace penstock
