#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "decode_worker/engine/decode_admission.h"
#include "decode_worker/engine/decode_engine.h"
#include "tests/decode_worker/hash_runner.h"

namespace penstock {

// Records the answer of one session. Any thread.
class AnswerRecord final : public DecodeSink {
 public:
  explicit AnswerRecord(std::function<void()> on_end) : on_end_(std::move(on_end)) {}
  void OnToken(v1::TokenOut token) override {
    MutexLock lock(mutex_);
    const bool first_of_step = steps_[token.choice()].empty() || steps_[token.choice()].back() == 0;
    EXPECT_TRUE(first_of_step || steps_[token.choice()].back() == token.more_in_step() + 1);
    steps_[token.choice()].push_back(token.more_in_step());
    tokens_[token.choice()].push_back(token.token());
  }
  void OnFirst(v1::FirstTokens first) override {
    MutexLock lock(mutex_);
    first_ = std::move(first);
  }
  v1::FirstTokens first() {
    MutexLock lock(mutex_);
    return first_;
  }
  void OnEnd(absl::Status status) override {
    {
      MutexLock lock(mutex_);
      status_ = std::move(status);
      ended_.NotifyAll();
    }
    on_end_();
  }
  absl::Status Await() {
    MutexLock lock(mutex_);
    for (int i = 0; i < 600 && !status_; ++i) {
      ended_.WaitFor(mutex_, std::chrono::milliseconds(100));
    }
    return status_.value_or(DeadlineExceeded("no end within a minute"));
  }
  bool ended() {
    MutexLock lock(mutex_);
    return status_.has_value();
  }
  std::map<uint32_t, std::vector<uint32_t>> tokens() {
    MutexLock lock(mutex_);
    return tokens_;
  }

 private:
  const std::function<void()> on_end_;
  Mutex mutex_;
  CondVar ended_;
  std::map<uint32_t, std::vector<uint32_t>> tokens_ GUARDED_BY(mutex_);
  std::map<uint32_t, std::vector<uint32_t>> steps_ GUARDED_BY(mutex_);  // more_in_step
  v1::FirstTokens first_ GUARDED_BY(mutex_);
  std::optional<absl::Status> status_ GUARDED_BY(mutex_);
};

// A session of a test: what it asks for, and its record.
struct TestSession {
  HandoffKey key;
  std::vector<uint32_t> prompt;
  int answers = 0;
  uint32_t choices = 1;
  bool local = false;               // the engine computes the rest of the prompt
  std::optional<uint32_t> first{};  // instead of First(choice)
  SamplingParams sampling{.temperature = 0};
  std::optional<BeamRules> beams{};
  std::optional<KvEviction> eviction{};  // streaming, of a prompt that it keeps
  PromptBlocks named{};
  std::optional<PendingAdmission> entry{};  // in the queue
  std::shared_ptr<AnswerRecord> sink{};
};

inline uint32_t First(uint32_t choice) { return 3 + choice; }

// Replaces the receiver: a queue of sessions, whose KV is there as soon as they are admitted.
class KvSource {
 public:
  KvSource(AdmissionContext admission, DecodeEngine& engine, BlockPool& pool)
      : admission_(admission), engine_(engine), pool_(pool) {}

  void Add(TestSession& session) EXCLUDES(mutex_) {
    session.named = admission_.cache.NameBlocks("", session.prompt);
    DecodeNeed need = NeedOf(admission_.layout,
                             {.tokens = std::ssize(session.prompt),
                              .more = session.answers,
                              .choices = session.beams ? session.beams->width : session.choices,
                              .limit = session.eviction ? session.eviction->limit() : 0,
                              .step_tokens = admission_.step_tokens,
                              .chunk_tokens = session.local ? 64 : 0});
    if (session.eviction) need.held_max = 0;
    session.entry.emplace(admission_, need);
    session.sink = std::make_shared<AnswerRecord>([this] { OnRoom(); });
    {
      MutexLock lock(mutex_);
      queue_.push_back(&session);
    }
    OnRoom();
  }

  void OnRoom() EXCLUDES(mutex_) {
    for (DecodeJob& job : Admit()) engine_.Add(std::move(job));
  }

  // Removes it from the queue, or cancels it in the engine.
  void Cancel(TestSession& session) EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      std::erase(queue_, &session);
      session.entry.reset();
    }
    engine_.Cancel(session.key);
    OnRoom();
  }

  bool waiting() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return !queue_.empty();
  }
  int64_t restored() const { return restored_; }

 private:
  std::vector<DecodeJob> Admit() EXCLUDES(mutex_) {
    std::vector<DecodeJob> jobs;
    MutexLock lock(mutex_);
    while (!queue_.empty()) {
      TestSession& first = *queue_.front();
      auto admitted = first.entry->Try(first.named, [this] { OnRoom(); });
      if (!admitted) break;
      queue_.pop_front();
      jobs.push_back(JobOf(first, *std::move(admitted)));
    }
    return jobs;
  }

  DecodeJob JobOf(TestSession& session, PendingAdmission::Admitted admitted) REQUIRES(mutex_) {
    DecodeJob job;
    job.key = session.key;
    job.tokens = session.prompt;
    job.prompt_tokens = session.prompt.size();
    job.prompt = session.named;
    job.sampling = session.sampling;
    job.stop.tokens_max = session.answers;
    job.beams = session.beams;
    job.eviction = session.eviction;
    job.sink = session.sink;
    job.swap = std::move(admitted.swap);
    job.access = admitted.blocks.access;
    job.blocks = std::move(admitted.blocks.held);
    job.exchanges = admitted.exchanges;
    const KvLayout& layout = admission_.layout;
    const auto tokens = static_cast<int32_t>(session.prompt.size());
    const auto first = static_cast<size_t>(session.local ? 0 : layout.FirstBlock(tokens));
    if (job.blocks.size() < first) job.blocks.resize(first);
    const size_t held = job.blocks.size();
    const bool takes_later = session.local && job.exchanges > 0;
    const auto more = takes_later ? 0 : layout.BlocksFor(tokens) - static_cast<int64_t>(held);
    BlockCredit& credit = admitted.blocks.credit;
    for (BlockRef& block : credit.Take(more)) job.blocks.push_back(std::move(block));
    job.growth = std::move(credit);
    if (session.local) {
      job.prefill = LocalPrefill{.cached = static_cast<int32_t>(held) * 16,
                                 .first_choice = 0,
                                 .choices = session.choices,
                                 .arrival = {}};
      return job;
    }
    Prefill(session.prompt, job.blocks, held);
    if (session.beams) {
      AddCandidates(session, job);
      return job;
    }
    for (uint32_t choice = 0; choice < session.choices; ++choice) {
      job.first.emplace_back().set_choice(choice);
      job.first.back().set_token(session.first.value_or(First(choice)));
    }
    return job;
  }

  void AddCandidates(const TestSession& session, DecodeJob& job) const {
    std::vector<float> logits = HashLogits(session.prompt, admission_.layout.window);
    Sampler sampler(session.sampling, 0, session.prompt);
    const auto count = static_cast<size_t>(session.beams->candidates());
    const RankedTokens ranked = *sampler.Rank(logits, count);
    for (const RankedToken& token : ranked.best) {
      v1::TokenOut& first = job.first.emplace_back();
      first.set_token(token.id);
      first.set_score(token.score);
      first.set_logprob(token.logprob);
    }
  }

  // Held blocks must be right already.
  void Prefill(const std::vector<uint32_t>& prompt, const std::vector<BlockRef>& blocks,
               size_t held) {
    HashSlots slots(admission_.layout.window);
    for (size_t i = 0; i < prompt.size(); ++i) {
      const uint64_t right = slots.Add(prompt[i]);
      const BlockRef& block = blocks[i / 16];
      if (!block) continue;  // The window has passed it.
      uint64_t& slot = HashSlot(pool_.view(), block.id(), static_cast<int32_t>(i % 16));
      if (i / 16 < held) {
        EXPECT_EQ(slot, right) << "a held block is not what it should be";
        restored_ += i % 16 == 0 ? 1 : 0;
      } else {
        slot = right;
        if (admission_.layout.layers == 2) {  // the layer for multi-token prediction has the same
          auto* const layer = reinterpret_cast<uint64_t*>(pool_.view().Layer(block.id(), 1));
          layer[i % 16] = right;
        }
      }
    }
  }

  const AdmissionContext admission_;
  DecodeEngine& engine_;
  BlockPool& pool_;
  std::atomic<int64_t> restored_{0};  // blocks
  mutable Mutex mutex_;
  std::deque<TestSession*> queue_ GUARDED_BY(mutex_);
};

class DecodeEngineTest : public ::testing::Test {
 protected:
  void Make(int64_t blocks, int64_t swap_blocks, size_t batch = 16) {
    pool_ = *BlockPool::Create(runner_.kv_layout(), blocks);
    cache_ = *KvCacheManager::Create(*pool_, clock_, {.model_fingerprint = 1, .kv_format = "bf16"});
    TieredStore::Options options;
    options.dram_bytes = static_cast<uint64_t>(2 * swap_blocks) * kHashLayout.BlockStride();
    options.on_pages_freed = [this] { OnRoom(); };
    store_ = *TieredStore::Open(options, pool_->view(),
                                [this](const BlockEvent& event) { cache_->OnStoreEvent(event); });
    room_ = std::make_unique<SwapBudget>(store_->swap_blocks_max());
    if (draft_blocks_ > 0) {
      draft_pool_ = *BlockPool::Create(kHashLayout, draft_blocks_);
      draft_ = std::make_unique<DraftModel>(
          draft_runner_, *draft_pool_, *engine_clock_,
          DraftModel::Options{.step_tokens = 512, .vocab = kHashVocab, .relative_cost = 0.01});
    }
    if (runner_.has_mtp) {
      mtp_ = std::make_unique<MtpDrafter>(
          runner_, pool_->view(), *engine_clock_,
          MtpDrafter::Options{.step_tokens = 512, .relative_cost = 0.01});
    }
    engine_ = std::make_unique<DecodeEngine>(
        DecodeParts{.runner = runner_,
                    .pool = *pool_,
                    .cache = *cache_,
                    .store = *store_,
                    .clock = *engine_clock_,
                    .draft = draft_.get(),
                    .mtp = mtp_.get()},
        DecodeEngine::Options{
            .batch_max = batch,
            .sessions_max = 1000,
            .idle_beat = std::chrono::hours(1),  // every event that the engine waits for wakes it
            .draft_tokens = draft_tokens_,
            .draft_rows = 64,
            .ngrams = ngrams_,
            .on_room = [this] { OnRoom(); },
            .on_turn = on_turn_});
    source_ =
        std::make_unique<KvSource>(AdmissionContext{.engine = *engine_,
                                                    .cache = *cache_,
                                                    .swap_budget = *room_,
                                                    .layout = runner_.kv_layout(),
                                                    .blocks_total = blocks,
                                                    .watermark = std::max<int64_t>(1, blocks / 100),
                                                    .step_tokens = 1 + draft_tokens_,
                                                    .chunk_tokens = 64},
                                   *engine_, *pool_);
    store_->Start();
    cache_->AttachStore(store_.get());
    if (!starts_with_all_) engine_->Start();
  }
  void OnRoom() { source_->OnRoom(); }

  void TearDown() override {
    if (engine_ == nullptr) return;
    engine_->Stop();
    cache_->AttachStore(nullptr);
    store_->Stop();
    engine_.reset();
    EXPECT_EQ(room_->reserved(), 0);
    EXPECT_EQ(pool_->blocks_used(), 0);
    EXPECT_EQ(pool_->blocks_reserved(), 0);
    EXPECT_EQ(pool_->blocks_leaving(), 0);
    EXPECT_EQ(store_->stats().swap_slots, 0u);
    cache_.reset();
    store_.reset();
    if (draft_pool_ != nullptr) {
      EXPECT_EQ(draft_pool_->blocks_used(), 0);
    }
  }

  void ExpectExact(TestSession& session) {
    const absl::Status status = session.sink->Await();
    ASSERT_TRUE(status.ok()) << status;
    auto tokens = session.sink->tokens();
    for (uint32_t choice = 0; choice < session.choices; ++choice) {
      const uint32_t first = session.local
                                 ? FirstHashToken(session.prompt, runner_.repeats, runner_.window)
                                 : First(choice);
      auto expected = HashAnswer(session.prompt, first, session.answers, runner_.repeats,
                                 runner_.window, session.eviction);
      expected.erase(expected.begin());  // Prefill's.
      EXPECT_EQ(tokens[choice], expected);
    }
  }

  // `count` sessions, a quarter of them up to `stretch` times as long as the others.
  static std::vector<TestSession> Mixed(int count, uint32_t length, uint32_t stretch) {
    std::mt19937 random(3);
    std::vector<TestSession> sessions(static_cast<size_t>(count));
    for (size_t i = 0; i < sessions.size(); ++i) {
      TestSession& session = sessions[i];
      session.key = {.session = i + 1, .epoch = 0, .nonce = 1};
      const uint32_t max = random() % 4 == 0 ? stretch * length : length;
      session.prompt.resize(1 + random() % max);
      for (uint32_t& token : session.prompt) token = static_cast<uint32_t>(random() % kHashVocab);
      session.answers = 2 + static_cast<int>(random() % max);
      session.choices = 1 + static_cast<uint32_t>(random() % 3 == 0);
    }
    return sessions;
  }

  void Serve(std::vector<TestSession>& sessions) {
    for (TestSession& session : sessions) source_->Add(session);
    if (starts_with_all_) engine_->Start();
    for (TestSession& session : sessions) ExpectExact(session);
  }
  // Serves rounds of sessions until there were more than `preemptions`. A session is preempted only
  // beside enough others, so no step of a round begins before all of its sessions are there.
  void ServeUntilPreempted(int64_t preemptions,
                           const std::function<std::vector<TestSession>()>& make) {
    for (int round = 0; round < 20 && engine_->preemptions() <= preemptions; ++round) {
      std::vector<TestSession> sessions = make();
      runner_.waits = true;
      for (TestSession& session : sessions) source_->Add(session);
      runner_.waits = false;
      for (TestSession& session : sessions) ExpectExact(session);
    }
    EXPECT_GT(engine_->preemptions(), preemptions);
  }
  // Called before Make: the engine starts with all sessions of Serve, so that batches do not depend
  // on how fast they come.
  void StartWithAll() { starts_with_all_ = true; }

  std::function<void()> on_turn_;
  int32_t draft_tokens_ = 0;  // no speculation
  bool ngrams_ = true;
  int64_t draft_blocks_ = 0;  // no draft model
  bool starts_with_all_ = false;
  SteadyClock clock_;
  const Clock* engine_clock_ = &clock_;
  HashRunner runner_;
  HashRunner draft_runner_;
  std::unique_ptr<BlockPool> draft_pool_;
  std::unique_ptr<DraftModel> draft_;
  std::unique_ptr<MtpDrafter> mtp_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<KvCacheManager> cache_;
  std::unique_ptr<TieredStore> store_;
  std::unique_ptr<SwapBudget> room_;
  std::unique_ptr<DecodeEngine> engine_;
  std::unique_ptr<KvSource> source_;
};

}  // namespace penstock
