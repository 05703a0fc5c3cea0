// The decode engine over a model whose KV says which token it is of: whatever page is lost, torn or
// swapped with another changes the answer.

#include "decode_worker/decode_engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <thread>

#include "worker/ticker.h"

namespace penstock {
namespace {

constexpr KvLayout kLayout{.layers = 1, .kv_heads = 1, .head_dim = 8, .block_tokens = 16};
constexpr int32_t kVocab = 251;

// A slot of a page holds a hash of the tokens up to it.
uint64_t& Slot(const PagedKv& kv, uint32_t block, int32_t slot) {
  return reinterpret_cast<uint64_t*>(kv.Block(block))[slot];
}

uint64_t Mix(uint64_t hash, uint32_t token) {
  hash = (hash ^ token) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 29;
}

uint32_t NextToken(uint64_t hash) { return static_cast<uint32_t>(hash % kVocab); }

class HashRunner final : public ModelRunner {
 public:
  int32_t vocab() const override { return kVocab; }
  KvLayout kv_layout() const override { return kLayout; }
  int32_t max_position() const override { return 4096; }

  absl::Status Step(const StepArgs& args) override {
    int64_t row = 0;
    for (const SequenceStep& step : args.sequences) {
      const int32_t position = step.position;
      const uint64_t hash = Mix(Before(args.kv, step), step.tokens[0]);
      Slot(args.kv, step.blocks[position / 16], position % 16) = hash;
      float* logits = &args.logits(row++, 0);
      std::fill_n(logits, kVocab, 0.0f);
      logits[NextToken(hash)] = 10;
    }
    return absl::OkStatus();
  }

 private:
  // Of every slot before it, so that each must be right.
  static uint64_t Before(const PagedKv& kv, const SequenceStep& step) {
    uint64_t all = 0;
    for (int32_t i = 0; i < step.position; ++i) {
      all = Mix(all, static_cast<uint32_t>(Slot(kv, step.blocks[i / 16], i % 16)));
    }
    return all;
  }
};

// The answer by the same arithmetic, without pages.
std::vector<uint32_t> Expected(const std::vector<uint32_t>& prompt, uint32_t first, int answers) {
  std::vector<uint64_t> slots;
  auto feed = [&](uint32_t token) {
    uint64_t all = 0;
    for (const uint64_t slot : slots) all = Mix(all, static_cast<uint32_t>(slot));
    slots.push_back(Mix(all, token));
    return NextToken(slots.back());
  };
  for (const uint32_t token : prompt) feed(token);
  std::vector<uint32_t> tokens = {first};
  while (static_cast<int>(tokens.size()) < answers) tokens.push_back(feed(tokens.back()));
  return tokens;
}

class Sink final : public DecodeSink {
 public:
  void OnToken(v1::TokenOut token) override {
    MutexLock lock(mutex_);
    tokens_[token.choice()].push_back(token.token());
  }
  void OnEnd(absl::Status status) override {
    MutexLock lock(mutex_);
    status_ = std::move(status);
    ended_.NotifyAll();
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
  Mutex mutex_;
  CondVar ended_;
  std::map<uint32_t, std::vector<uint32_t>> tokens_ GUARDED_BY(mutex_);
  std::optional<absl::Status> status_ GUARDED_BY(mutex_);
};

class DecodeEngineTest : public ::testing::Test {
 protected:
  struct Session {
    std::vector<uint32_t> prompt;
    int answers = 0;
    uint32_t choices = 1;
    std::shared_ptr<Sink> sink = std::make_shared<Sink>();
  };

  void Make(int64_t blocks, int64_t swap_blocks) {
    pool_ = *BlockPool::Create(kLayout, blocks);
    cache_ = *WorkerCache::Create(*pool_, clock_, {.model_fingerprint = 1, .kv_format = "bf16"});
    TieredStore::Options options;
    options.dram_bytes = static_cast<uint64_t>(2 * swap_blocks) * kLayout.BlockStride();
    store_ = *TieredStore::Open(options, pool_->view(),
                                [this](const BlockEvent& event) { cache_->OnStoreEvent(event); });
    store_->Start();
    cache_->AttachStore(store_.get());
    room_ = std::make_unique<SwapRoom>(swap_blocks);
    engine_ = std::make_unique<DecodeEngine>(
        runner_, *pool_, *cache_, store_.get(),
        DecodeEngine::Options{.batch_max = 16, .sessions_max = 1000});
    engine_->Start();
  }

  void TearDown() override {
    engine_->Stop();
    cache_->AttachStore(nullptr);
    store_->Stop();
    engine_.reset();
    EXPECT_EQ(pool_->blocks_used(), 0);
    EXPECT_EQ(pool_->blocks_promised(), 0);
    cache_.reset();
    store_.reset();
  }

  // As the service admits and the receiver delivers; false when there is no room now.
  bool TryAdd(Session& session, uint64_t key) {
    const auto tokens = static_cast<int64_t>(session.prompt.size());
    DecodeJob job;
    job.key = {.session = key, .epoch = 0, .nonce = 1};
    job.tokens = session.prompt;
    job.prompt_tokens = session.prompt.size();
    job.prompt = cache_->NameBlocks("", session.prompt);
    job.sampling.temperature = 0;
    job.stop.tokens_max = session.answers;
    job.sink = session.sink;
    const int64_t first_growth = std::min(session.answers, kLayout.block_tokens);
    auto blocks = [&](int64_t more) {
      return kLayout.BlocksFor(tokens) + DecodeGrowthBlocks(kLayout, tokens, more, session.choices);
    };
    if (engine_->preempted() > 0) return false;
    auto promise = room_->Promise(blocks(session.answers));
    auto admission =
        cache_->Admit(job.prompt, {.held_most = (tokens - 1) / kLayout.block_tokens,
                                   .blocks = blocks(promise ? first_growth : session.answers)});
    if (!admission) return false;
    while (!cache_->FinishRestore(job.prompt, *admission)) store_->WaitUntilQuiet();
    if (promise) job.swap = *std::move(promise);
    job.access = admission->access;
    job.blocks = std::move(admission->held);
    const size_t held = job.blocks.size();
    const auto more = kLayout.BlocksFor(tokens) - static_cast<int64_t>(held);
    for (BlockRef& block : admission->credit.Take(more)) job.blocks.push_back(std::move(block));
    job.growth = std::move(admission->credit);
    uint64_t all = 0;
    for (int32_t i = 0; i < tokens; ++i) {
      uint64_t& slot = Slot(pool_->view(), job.blocks[i / 16].id(), i % 16);
      const uint64_t right = Mix(all, session.prompt[i]);
      if (static_cast<size_t>(i / 16) < held) {
        EXPECT_EQ(slot, right) << "a held block is not what it should be";
      } else {
        slot = right;
      }
      all = Mix(all, static_cast<uint32_t>(slot));
    }
    for (uint32_t choice = 0; choice < session.choices; ++choice) {
      job.first.emplace_back().set_choice(choice);
      job.first.back().set_token(First(choice));
    }
    engine_->Add(std::move(job));
    return true;
  }

  static uint32_t First(uint32_t choice) { return 3 + choice; }

  void ExpectExact(Session& session) {
    ASSERT_TRUE(session.sink->Await().ok()) << session.sink->Await();
    auto tokens = session.sink->tokens();
    for (uint32_t choice = 0; choice < session.choices; ++choice) {
      auto expected = Expected(session.prompt, First(choice), session.answers);
      expected.erase(expected.begin());  // Prefill's.
      EXPECT_EQ(tokens[choice], expected);
    }
  }

  std::vector<Session> Mixed(int count) {
    std::mt19937 random(3);
    std::vector<Session> sessions(static_cast<size_t>(count));
    for (Session& session : sessions) {
      const bool is_long = random() % 4 == 0;
      session.prompt.resize(1 + random() % (is_long ? 500 : 60));
      for (uint32_t& token : session.prompt) token = static_cast<uint32_t>(random() % kVocab);
      session.answers = 2 + static_cast<int>(random() % (is_long ? 300 : 80));
      session.choices = 1 + static_cast<uint32_t>(random() % 3 == 0);
    }
    return sessions;
  }

  void Serve(std::vector<Session>& sessions) {
    for (size_t i = 0; i < sessions.size(); ++i) {
      ASSERT_TRUE(Eventually([&] { return TryAdd(sessions[i], i + 1); })) << i;
    }
    for (Session& session : sessions) ExpectExact(session);
  }

  static bool Eventually(const std::function<bool()>& done) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!done()) {
      if (std::chrono::steady_clock::now() > limit) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return true;
  }

  SteadyClock clock_;
  HashRunner runner_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<WorkerCache> cache_;
  std::unique_ptr<TieredStore> store_;
  std::unique_ptr<SwapRoom> room_;
  std::unique_ptr<DecodeEngine> engine_;
};

TEST_F(DecodeEngineTest, PreemptedSessionsGoOnExactly) {
  Make(90, 4000);
  std::vector<Session> sessions = Mixed(60);
  Serve(sessions);
  EXPECT_GT(engine_->preemptions(), 5);
  EXPECT_EQ(room_->promised(), 0);
}

TEST_F(DecodeEngineTest, WithoutRoomToSwapSessionsWaitAtTheDoor) {
  Make(90, 10);
  std::vector<Session> sessions = Mixed(40);
  Serve(sessions);
  EXPECT_EQ(engine_->preemptions(), 0);
}

TEST_F(DecodeEngineTest, ACancelledSessionLeavesNothingWhereverItIs) {
  Make(90, 4000);
  std::vector<Session> sessions = Mixed(40);
  for (size_t i = 0; i < sessions.size(); ++i) {
    ASSERT_TRUE(Eventually([&] { return TryAdd(sessions[i], i + 1); }));
    if (i % 2 == 1) engine_->Cancel({.session = i, .epoch = 0, .nonce = 1});  // The one before.
  }
  for (size_t i = 1; i < sessions.size(); i += 2) ExpectExact(sessions[i]);
  EXPECT_TRUE(Eventually([&] { return engine_->running() == 0; }));
}

// Short and long sessions, more of them than fit: how much of the pool holds KV of sequences.
TEST_F(DecodeEngineTest, UnderPressureThePoolIsFull) {
  Make(400, 20000);
  std::vector<Session> sessions = Mixed(150);
  Mutex mutex;
  double sum = 0;
  int64_t samples = 0;
  std::atomic<bool> pressing{false};
  {
    Ticker sampler(std::chrono::microseconds(500), [&] {
      if (!pressing) return;
      MutexLock lock(mutex);
      sum += static_cast<double>(pool_->blocks_used() + pool_->blocks_leaving());
      ++samples;
    });
    for (size_t i = 0; i < sessions.size(); ++i) {
      if (TryAdd(sessions[i], i + 1)) continue;
      pressing = true;  // Somebody waits for room.
      ASSERT_TRUE(Eventually([&] { return TryAdd(sessions[i], i + 1); })) << i;
    }
  }
  for (Session& session : sessions) ExpectExact(session);
  ASSERT_GT(samples, 100);
  const double utilisation = sum / static_cast<double>(samples) / 400;
  RecordProperty("kv_utilisation", std::to_string(utilisation));
  std::printf("KV memory utilisation under pressure: %.3f (%lld samples, %lld preemptions)\n",
              utilisation, static_cast<long long>(samples),
              static_cast<long long>(engine_->preemptions()));
  EXPECT_GT(utilisation, 0.96);
}

}  // namespace
}  // namespace penstock
