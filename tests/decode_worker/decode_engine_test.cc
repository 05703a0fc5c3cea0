// The decode engine over a model whose KV says which token it is of: whatever page is lost, torn or
// swapped with another changes the answer.

#include "decode_worker/decode_engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <thread>

#include "decode_worker/decode_admission.h"
#include "model/sampler/token_mass.h"

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
  std::function<void()> before_step;  // on the engine thread; may be empty
  bool draws = false;
  std::atomic<int64_t> drawn = 0, given = 0;  // tokens, and rows of logits

  int32_t vocab() const override { return kVocab; }
  KvLayout kv_layout() const override { return kLayout; }
  int32_t max_position() const override { return 4096; }
  bool draws_tokens() const override { return draws; }

  absl::Status Step(const StepArgs& args) override {
    if (before_step) before_step();
    for (const SequenceStep& step : args.sequences) {
      const auto bad = [](uint32_t token) { return token >= kVocab; };
      if (std::any_of(step.tokens.begin(), step.tokens.end(), bad)) {
        return InvalidArgument("a token is not below {}", kVocab);
      }
    }
    int64_t row = 0;
    auto draw = args.drawn.begin();
    for (const SequenceStep& step : args.sequences) {
      uint64_t hash = 0;
      for (size_t i = 0; i < step.tokens.size(); ++i) {
        const int32_t position = step.position + static_cast<int32_t>(i);
        hash = Mix(Before(args.kv, step, position), step.tokens[i]);
        Slot(args.kv, step.blocks[position / 16], position % 16) = hash;
      }
      for (size_t i = 0; i < step.draws.size(); ++i) {
        *draw++ = {.id = NextToken(hash), .max = 0, .total_mass = uint64_t{1} << kMassBits};
      }
      drawn += static_cast<int64_t>(step.draws.size());
      if (!step.wants_logits) continue;
      float* logits = args.logits.row(row++);
      std::fill_n(logits, kVocab, 0.0f);
      logits[NextToken(hash)] = 10;
    }
    given += row;
    return absl::OkStatus();
  }

 private:
  // The hash of every slot before `position`, so that each of them must be right.
  static uint64_t Before(const PagedKv& kv, const SequenceStep& step, int32_t position) {
    uint64_t all = 0;
    for (int32_t i = 0; i < position; ++i) {
      all = Mix(all, static_cast<uint32_t>(Slot(kv, step.blocks[i / 16], i % 16)));
    }
    return all;
  }
};

// The first token of the answer to a prompt, by the same arithmetic.
uint32_t FirstBehind(const std::vector<uint32_t>& prompt) {
  uint64_t all = 0, slot = 0;
  for (const uint32_t token : prompt) {
    slot = Mix(all, token);
    all = Mix(all, static_cast<uint32_t>(slot));
  }
  return NextToken(slot);
}

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
  explicit Sink(std::function<void()> on_end) : on_end_(std::move(on_end)) {}
  void OnToken(v1::TokenOut token) override {
    MutexLock lock(mutex_);
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
  v1::FirstTokens first_ GUARDED_BY(mutex_);
  std::optional<absl::Status> status_ GUARDED_BY(mutex_);
};

struct Session {
  HandoffKey key;
  std::vector<uint32_t> prompt;
  int answers = 0;
  uint32_t choices = 1;
  bool local = false;               // what is not cached is computed by the engine
  std::optional<uint32_t> first{};  // instead of First(choice)
  SamplingParams sampling{.temperature = 0};
  PromptBlocks named{};
  std::optional<PendingAdmission> entry{};  // at the door
  std::shared_ptr<Sink> sink{};
};

uint32_t First(uint32_t choice) { return 3 + choice; }

// Stands in for the receiver: a line of sessions, whose KV is there as soon as they are admitted.
class Line {
 public:
  Line(AdmissionContext door, DecodeEngine& engine, BlockPool& pool)
      : door_(door), engine_(engine), pool_(pool) {}

  void Add(Session& session) EXCLUDES(mutex_) {
    session.named = door_.cache.NameBlocks("", session.prompt);
    session.entry.emplace(door_, NeedOf(door_.layout, static_cast<int64_t>(session.prompt.size()),
                                        session.answers, session.choices));
    session.sink = std::make_shared<Sink>([this] { OnRoom(); });
    {
      MutexLock lock(mutex_);
      line_.push_back(&session);
    }
    OnRoom();
  }

  void OnRoom() EXCLUDES(mutex_) {
    for (DecodeJob& job : Admit()) engine_.Add(std::move(job));
  }

  // Takes it out of the line, or cancels it behind it.
  void Cancel(Session& session) EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      std::erase(line_, &session);
      session.entry.reset();
    }
    engine_.Cancel(session.key);
    OnRoom();
  }

  bool waiting() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return !line_.empty();
  }
  int64_t restored() const { return restored_; }

 private:
  std::vector<DecodeJob> Admit() EXCLUDES(mutex_) {
    std::vector<DecodeJob> jobs;
    MutexLock lock(mutex_);
    while (!line_.empty()) {
      Session& first = *line_.front();
      auto admitted = first.entry->Try(first.named, [this] { OnRoom(); });
      if (!admitted) break;
      line_.pop_front();
      jobs.push_back(JobOf(first, *std::move(admitted)));
    }
    return jobs;
  }

  DecodeJob JobOf(Session& session, PendingAdmission::Admitted admitted) REQUIRES(mutex_) {
    DecodeJob job;
    job.key = session.key;
    job.tokens = session.prompt;
    job.prompt_tokens = session.prompt.size();
    job.prompt = session.named;
    job.sampling = session.sampling;
    job.stop.tokens_max = session.answers;
    job.sink = session.sink;
    job.swap = std::move(admitted.swap);
    job.access = admitted.blocks.access;
    job.blocks = std::move(admitted.blocks.held);
    const size_t held = job.blocks.size();
    const auto tokens = static_cast<int32_t>(session.prompt.size());
    const auto more = kLayout.BlocksFor(tokens) - static_cast<int64_t>(held);
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
    for (uint32_t choice = 0; choice < session.choices; ++choice) {
      job.first.emplace_back().set_choice(choice);
      job.first.back().set_token(session.first.value_or(First(choice)));
    }
    return job;
  }

  // Held blocks must be right already.
  void Prefill(const std::vector<uint32_t>& prompt, const std::vector<BlockRef>& blocks,
               size_t held) {
    uint64_t all = 0;
    for (size_t i = 0; i < prompt.size(); ++i) {
      uint64_t& slot = Slot(pool_.view(), blocks[i / 16].id(), static_cast<int32_t>(i % 16));
      const uint64_t right = Mix(all, prompt[i]);
      if (i / 16 < held) {
        EXPECT_EQ(slot, right) << "a held block is not what it should be";
        restored_ += i % 16 == 0 ? 1 : 0;
      } else {
        slot = right;
      }
      all = Mix(all, static_cast<uint32_t>(slot));
    }
  }

  const AdmissionContext door_;
  DecodeEngine& engine_;
  BlockPool& pool_;
  std::atomic<int64_t> restored_{0};  // blocks
  mutable Mutex mutex_;
  std::deque<Session*> line_ GUARDED_BY(mutex_);
};

class DecodeEngineTest : public ::testing::Test {
 protected:
  void Make(int64_t blocks, int64_t swap_blocks, size_t batch = 16) {
    pool_ = *BlockPool::Create(kLayout, blocks);
    cache_ = *KvCacheManager::Create(*pool_, clock_, {.model_fingerprint = 1, .kv_format = "bf16"});
    TieredStore::Options options;
    options.dram_bytes = static_cast<uint64_t>(2 * swap_blocks) * kLayout.BlockStride();
    options.on_pages_freed = [this] { OnRoom(); };
    store_ = *TieredStore::Open(options, pool_->view(),
                                [this](const BlockEvent& event) { cache_->OnStoreEvent(event); });
    room_ = std::make_unique<SwapBudget>(store_->swap_blocks_max());
    engine_ = std::make_unique<DecodeEngine>(
        DecodeParts{
            .runner = runner_, .pool = *pool_, .cache = *cache_, .store = *store_, .clock = clock_},
        DecodeEngine::Options{
            .batch_max = batch,
            .sessions_max = 1000,
            .idle_beat = std::chrono::hours(1),  // whatever the engine waits for wakes it
            .on_room = [this] { OnRoom(); }});
    line_ =
        std::make_unique<Line>(AdmissionContext{.engine = *engine_,
                                                .cache = *cache_,
                                                .swap_budget = *room_,
                                                .layout = kLayout,
                                                .blocks_total = blocks,
                                                .watermark = std::max<int64_t>(1, blocks / 100)},
                               *engine_, *pool_);
    store_->Start();
    cache_->AttachStore(store_.get());
    engine_->Start();
  }
  void OnRoom() { line_->OnRoom(); }

  void TearDown() override {
    if (engine_ == nullptr) return;
    engine_->Stop();
    cache_->AttachStore(nullptr);
    store_->Stop();
    engine_.reset();
    EXPECT_EQ(room_->reserved(), 0);
    EXPECT_EQ(pool_->blocks_used(), 0);
    EXPECT_EQ(pool_->blocks_promised(), 0);
    EXPECT_EQ(pool_->blocks_leaving(), 0);
    EXPECT_EQ(store_->stats().swap_slots, 0u);
    cache_.reset();
    store_.reset();
  }

  static void ExpectExact(Session& session) {
    const absl::Status status = session.sink->Await();
    ASSERT_TRUE(status.ok()) << status;
    auto tokens = session.sink->tokens();
    for (uint32_t choice = 0; choice < session.choices; ++choice) {
      const uint32_t first = session.local ? FirstBehind(session.prompt) : First(choice);
      auto expected = Expected(session.prompt, first, session.answers);
      expected.erase(expected.begin());  // Prefill's.
      EXPECT_EQ(tokens[choice], expected);
    }
  }

  // A quarter of them `stretch` times as long as the others.
  static std::vector<Session> Mixed(int count, uint32_t length, uint32_t stretch) {
    std::mt19937 random(3);
    std::vector<Session> sessions(static_cast<size_t>(count));
    for (size_t i = 0; i < sessions.size(); ++i) {
      Session& session = sessions[i];
      session.key = {.session = i + 1, .epoch = 0, .nonce = 1};
      const uint32_t max = random() % 4 == 0 ? stretch * length : length;
      session.prompt.resize(1 + random() % max);
      for (uint32_t& token : session.prompt) token = static_cast<uint32_t>(random() % kVocab);
      session.answers = 2 + static_cast<int>(random() % max);
      session.choices = 1 + static_cast<uint32_t>(random() % 3 == 0);
    }
    return sessions;
  }

  void Serve(std::vector<Session>& sessions) {
    for (Session& session : sessions) line_->Add(session);
    for (Session& session : sessions) ExpectExact(session);
  }

  SteadyClock clock_;
  HashRunner runner_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<KvCacheManager> cache_;
  std::unique_ptr<TieredStore> store_;
  std::unique_ptr<SwapBudget> room_;
  std::unique_ptr<DecodeEngine> engine_;
  std::unique_ptr<Line> line_;
};

TEST_F(DecodeEngineTest, PreemptedSessionsGoOnExactly) {
  Make(90, 4000);
  std::vector<Session> sessions = Mixed(60, 80, 5);
  Serve(sessions);
  EXPECT_GT(engine_->preemptions(), 5);
}

// The longest that is let in takes all there is: it must be able to come back, too.
TEST_F(DecodeEngineTest, ASessionThatMayTakeTheWholePoolComesBack) {
  Make(20, 4000);
  std::vector<Session> sessions(8);
  for (size_t i = 0; i < sessions.size(); ++i) {
    sessions[i].key = {.session = i + 1, .epoch = 0, .nonce = 1};
    sessions[i].prompt.assign(30, static_cast<uint32_t>(i));
    sessions[i].answers = 20 * 16 - 30 + 1;
  }
  Serve(sessions);
  EXPECT_GT(engine_->preemptions(), 5);
}

TEST_F(DecodeEngineTest, WithoutATierSessionsWaitAtTheDoor) {
  Make(90, 0);
  std::vector<Session> sessions = Mixed(40, 80, 5);
  Serve(sessions);
  EXPECT_EQ(engine_->preemptions(), 0);
}

// Some have room to be swapped out, and others take all that they need at once.
TEST_F(DecodeEngineTest, WithLittleRoomToSwapAllEnd) {
  Make(90, 60);
  std::vector<Session> sessions = Mixed(60, 80, 5);
  Serve(sessions);
  EXPECT_GT(engine_->preemptions(), 0);
}

TEST_F(DecodeEngineTest, PrefixesComeBackFromTheTierBelow) {
  Make(90, 4000);
  std::vector<Session> first = Mixed(40, 80, 5);
  Serve(first);
  const int64_t before = line_->restored();
  std::vector<Session> again = Mixed(40, 80, 5);
  Serve(again);
  EXPECT_GT(line_->restored() - before, 100);
  EXPECT_GT(store_->stats().dram.restores, 100u);
}

TEST_F(DecodeEngineTest, ACancelledSessionLeavesNothingWhereverItIs) {
  Make(90, 4000);
  std::vector<Session> sessions = Mixed(80, 80, 5);
  std::mt19937 random(1);
  for (size_t i = 0; i < sessions.size(); ++i) {
    line_->Add(sessions[i]);
    const size_t other = random() % (i + 1) / 2 * 2 + 1;
    if (other <= i) line_->Cancel(sessions[other]);
  }
  for (size_t i = 1; i < sessions.size(); i += 2) line_->Cancel(sessions[i]);
  for (size_t i = 0; i < sessions.size(); i += 2) ExpectExact(sessions[i]);
}

TEST_F(DecodeEngineTest, StoppedInTheMiddleEverySessionIsToldOnce) {
  Make(90, 4000);
  std::vector<Session> sessions = Mixed(60, 80, 5);
  for (Session& session : sessions) line_->Add(session);
  while (engine_->preemptions() < 3) std::this_thread::yield();
  engine_->Stop();
  int unavailable = 0;
  for (Session& session : sessions) {
    line_->Cancel(session);  // From the line, if it is still there.
    if (session.sink->ended()) unavailable += session.sink->Await().ok() ? 0 : 1;
  }
  EXPECT_GT(unavailable, 0);
}

// Short and long sessions, more of them than fit: how much of the pool holds their KV. A sample a
// step, while somebody waits. A real step takes longer than the store's copies, so these end first.
TEST_F(DecodeEngineTest, UnderPressureThePoolIsFull) {
  Make(2000, 20000, 128);
  double used = 0;
  int64_t samples = 0;
  std::atomic<bool> all_came = false;
  runner_.before_step = [&] {
    while (!all_came) all_came.wait(false);
    store_->WaitUntilQuiet();
    line_->OnRoom();  // whoever fits is in, and who still waits waits for room
    if (!line_->waiting()) return;
    used +=
        static_cast<double>(pool_->blocks_total() - pool_->blocks_free() - pool_->blocks_cached());
    ++samples;
  };
  std::vector<Session> sessions = Mixed(400, 100, 10);
  for (Session& session : sessions) line_->Add(session);
  all_came = true;
  all_came.notify_one();
  for (Session& session : sessions) ExpectExact(session);
  ASSERT_GT(samples, 100);
  const double utilisation =
      used / static_cast<double>(samples) / static_cast<double>(pool_->blocks_total());
  RecordProperty("kv_utilisation", std::to_string(utilisation));
  std::printf("KV memory utilisation under pressure: %.3f (%lld steps, %lld preemptions)\n",
              utilisation, static_cast<long long>(samples),
              static_cast<long long>(engine_->preemptions()));
  EXPECT_GT(utilisation, 0.96);
}

// Some sessions' tokens are drawn by the runner, others need their logits here.
TEST_F(DecodeEngineTest, ARunnerDrawsTheTokensOfWhomThatIsEnough) {
  runner_.draws = true;
  Make(90, 4000);
  std::vector<Session> sessions = Mixed(60, 80, 5);
  for (size_t i = 0; i < sessions.size(); ++i) {
    sessions[i].local = i % 2 == 0;
    if (i % 3 == 0) sessions[i].sampling.top_logprobs = 2;
  }
  Serve(sessions);
  EXPECT_GT(runner_.drawn, runner_.given);
  EXPECT_GT(runner_.given, 0);
}

// Beside the answers of others, in chunks, with what the tiers have of it already.
TEST_F(DecodeEngineTest, TheEndsOfPromptsAreComputedHere) {
  Make(90, 4000);
  std::vector<Session> before = Mixed(40, 80, 5);
  Serve(before);
  std::vector<Session> sessions = Mixed(40, 80, 5);
  for (size_t i = 0; i < sessions.size(); ++i) {
    sessions[i].local = i % 2 == 0;
    sessions[i].key.nonce = 2;
    if (i % 4 == 0) sessions[i].prompt.push_back(7);
  }
  Serve(sessions);
  uint32_t cached = 0;
  for (Session& session : sessions) {
    if (!session.local) continue;
    const v1::FirstTokens first = session.sink->first();
    ASSERT_EQ(first.tokens_size(), static_cast<int>(session.choices));
    EXPECT_EQ(first.tokens(0).token(), FirstBehind(session.prompt));
    EXPECT_EQ(first.cached_tokens() + first.computed_tokens(), session.prompt.size());
    EXPECT_GT(first.computed_tokens(), 0u);
    cached += first.cached_tokens();
  }
  EXPECT_GT(cached, 100u);
}

TEST_F(DecodeEngineTest, ACancelledPromptLeavesNothing) {
  Make(90, 4000);
  std::vector<Session> sessions = Mixed(60, 80, 5);
  for (size_t i = 0; i < sessions.size(); ++i) {
    sessions[i].local = true;
    line_->Add(sessions[i]);
    if (i % 2 == 1) line_->Cancel(sessions[i - i % 4]);
  }
  for (size_t i = 0; i < sessions.size(); ++i) {
    if (i % 4 != 0) ExpectExact(sessions[i]);
  }
}

TEST_F(DecodeEngineTest, ARowThatTheModelRefusesEndsItsOwnSessionOnly) {
  Make(90, 4000);
  std::vector<Session> sessions = Mixed(40, 80, 5);
  for (size_t i = 0; i < sessions.size(); ++i) sessions[i].local = i % 2 == 0;
  for (const size_t bad : {3, 9, 27}) sessions[bad].first = kVocab;
  for (const size_t bad : {4, 20}) sessions[bad].prompt.back() = 0xffffffff;
  for (Session& session : sessions) line_->Add(session);
  for (Session& session : sessions) {
    if (session.first || session.prompt.back() >= kVocab) {
      EXPECT_TRUE(absl::IsInternal(session.sink->Await())) << session.sink->Await();
    } else {
      ExpectExact(session);
    }
  }
}

// The requester of a freeze.
class Holder final : public FreezeSink {
 public:
  void OnFrozen(std::vector<BlockRef> blocks) override {
    MutexLock lock(mutex_);
    blocks_ = std::move(blocks);
    answer_ = absl::OkStatus();
    answered_.NotifyAll();
  }
  void OnRefused(absl::Status status) override {
    MutexLock lock(mutex_);
    answer_ = std::move(status);
    answered_.NotifyAll();
  }
  absl::Status Await() {
    MutexLock lock(mutex_);
    for (int i = 0; i < 600 && !answer_; ++i) {
      answered_.WaitFor(mutex_, std::chrono::milliseconds(100));
    }
    return answer_.value_or(DeadlineExceeded("no answer within a minute"));
  }
  std::vector<BlockRef> TakeBlocks() {
    MutexLock lock(mutex_);
    return std::move(blocks_);
  }

 private:
  Mutex mutex_;
  CondVar answered_;
  std::vector<BlockRef> blocks_ GUARDED_BY(mutex_);
  std::optional<absl::Status> answer_ GUARDED_BY(mutex_);
};

class FreezeTest : public DecodeEngineTest {
 protected:
  // A freeze of choice 0 with its answer so far; nullopt when the choice has ended.
  std::optional<FreezeRequest> OrderOf(Session& session, uint64_t number) {
    while (session.sink->tokens()[0].empty()) {
      if (session.sink->ended()) return std::nullopt;
      std::this_thread::yield();
    }
    const std::vector<uint32_t> answered = session.sink->tokens()[0];
    FreezeRequest order{.freeze = {.session = number, .epoch = 0, .nonce = 2},
                        .key = session.key,
                        .choice = 0,
                        .tokens = session.prompt,
                        .prompt = {},
                        .last_token = answered.back(),
                        .sink = nullptr};
    order.tokens.push_back(First(0));
    order.tokens.insert(order.tokens.end(), answered.begin(), answered.end() - 1);
    order.prompt = cache_->NameBlocks("", order.tokens);
    return order;
  }

  absl::Status Hold(FreezeRequest order, Holder& holder) {
    order.sink = std::shared_ptr<FreezeSink>(std::shared_ptr<void>(), &holder);
    engine_->Freeze(std::move(order));
    return holder.Await();
  }

  void ExpectKvOf(const std::vector<uint32_t>& tokens, const std::vector<BlockRef>& blocks) {
    ASSERT_EQ(static_cast<int64_t>(blocks.size()),
              kLayout.BlocksFor(static_cast<int64_t>(tokens.size())));
    uint64_t all = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const uint64_t slot = Slot(pool_->view(), blocks[i / 16].id(), static_cast<int32_t>(i % 16));
      ASSERT_EQ(slot, Mix(all, tokens[i])) << "at " << i;
      all = Mix(all, static_cast<uint32_t>(slot));
    }
  }
};

// Among sessions that push each other out.
TEST_F(FreezeTest, AFrozenSequenceWaitsAndThenGoesOnExactly) {
  Make(90, 4000);
  std::vector<Session> sessions = Mixed(60, 80, 5);
  for (Session& session : sessions) line_->Add(session);
  int held = 0;
  for (size_t i = 0; i < sessions.size(); i += 3) {
    Session& session = sessions[i];
    const std::optional<FreezeRequest> order = OrderOf(session, i);
    if (!order) continue;
    Holder holder;
    const absl::Status status = Hold(*order, holder);
    if (!status.ok()) {
      EXPECT_TRUE(absl::IsNotFound(status)) << status;
      continue;
    }
    ++held;
    const std::vector<BlockRef> blocks = holder.TakeBlocks();
    const size_t said = session.sink->tokens()[0].size();
    const int64_t steps = engine_->steps();
    // Its last page may be read while others go on, as long as there are others.
    while (engine_->steps() < steps + 3 && engine_->running() > 2)
      ExpectKvOf(order->tokens, blocks);
    ExpectKvOf(order->tokens, blocks);
    EXPECT_EQ(session.sink->tokens()[0].size(), said);
    engine_->Unfreeze({.freeze = order->freeze, .key = order->key, .choice = 0});
  }
  RecordProperty("held", held);
  EXPECT_GT(held, 1) << "the others had ended before they could be frozen";
  for (Session& session : sessions) ExpectExact(session);
}

TEST_F(FreezeTest, OnlyMatchingSequencesAreFrozen) {
  Make(90, 4000);
  std::atomic<bool> open = false;
  runner_.before_step = [&] {
    while (engine_->steps() == 5 && !open) std::this_thread::yield();
  };
  Session session;
  session.key = {.session = 1, .epoch = 0, .nonce = 1};
  session.prompt.assign(30, 7);
  session.answers = 100;
  line_->Add(session);
  const std::optional<FreezeRequest> order = OrderOf(session, 1);
  ASSERT_TRUE(order.has_value());
  std::vector<FreezeRequest> orders(4, *order);
  orders[0].last_token ^= 1;
  orders[1].tokens[2] ^= 1;
  orders[1].prompt = cache_->NameBlocks("", orders[1].tokens);
  orders[2].key.nonce = 5;
  std::vector<Holder> holders(4);
  for (size_t i = 0; i < 4; ++i) {
    orders[i].freeze.session = i + 1;
    orders[i].sink = std::shared_ptr<FreezeSink>(std::shared_ptr<void>(), &holders[i]);
    engine_->Freeze(orders[i]);
  }
  // One that was refused has nothing that it could let go.
  engine_->Unfreeze({.freeze = orders[0].freeze, .key = order->key, .choice = 0});
  open = true;
  EXPECT_TRUE(absl::IsFailedPrecondition(holders[0].Await()));
  EXPECT_TRUE(absl::IsFailedPrecondition(holders[1].Await()));
  EXPECT_TRUE(absl::IsNotFound(holders[2].Await()));
  EXPECT_TRUE(holders[3].Await().ok());
  ExpectKvOf(order->tokens, holders[3].TakeBlocks());
  EXPECT_FALSE(session.sink->ended());
  engine_->Unfreeze({.freeze = orders[3].freeze, .key = order->key, .choice = 0});
  ExpectExact(session);
}

}  // namespace
}  // namespace penstock
