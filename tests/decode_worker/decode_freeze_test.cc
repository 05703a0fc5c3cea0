// Sequences that are frozen, read and let go while others are computed.

#include <gtest/gtest.h>

#include <thread>

#include "tests/decode_worker/decode_engine_fixture.h"

namespace penstock {
namespace {

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
  std::optional<FreezeRequest> OrderOf(TestSession& session, uint64_t number) {
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
              kHashLayout.BlocksFor(static_cast<int64_t>(tokens.size())));
    uint64_t all = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const uint64_t slot =
          HashSlot(pool_->view(), blocks[i / 16].id(), static_cast<int32_t>(i % 16));
      ASSERT_EQ(slot, MixHash(all, tokens[i])) << "at " << i;
      all = MixHash(all, static_cast<uint32_t>(slot));
    }
  }
};

// Among sessions that push each other out.
TEST_F(FreezeTest, AFrozenSequenceWaitsAndThenGoesOnExactly) {
  Make(90, 4000);
  int held = 0;
  // Some end before they can be frozen, on a busy machine perhaps all of a round.
  for (size_t round = 0; round < 20 && held < 2; ++round) {
    std::vector<TestSession> sessions = Mixed(60, 80, 5);
    for (TestSession& session : sessions) source_->Add(session);
    for (size_t i = 0; i < sessions.size(); i += 3) {
      TestSession& session = sessions[i];
      const std::optional<FreezeRequest> order = OrderOf(session, 100 * round + i);
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
      // Its last page may be read while others go on. They may have to wait for its blocks.
      for (int read = 0; read < 1000 && engine_->steps() < steps + 3; ++read) {
        ExpectKvOf(order->tokens, blocks);
      }
      ExpectKvOf(order->tokens, blocks);
      EXPECT_EQ(session.sink->tokens()[0].size(), said);
      engine_->Unfreeze({.freeze = order->freeze, .key = order->key, .choice = 0});
    }
    for (TestSession& session : sessions) ExpectExact(session);
  }
  RecordProperty("held", held);
  EXPECT_GT(held, 1) << "the others had ended before they could be frozen";
}

TEST_F(FreezeTest, OnlyMatchingSequencesAreFrozen) {
  Make(90, 4000);
  std::atomic<bool> open = false;
  runner_.before_step = [&] {
    while (engine_->steps() == 5 && !open) std::this_thread::yield();
  };
  TestSession session;
  session.key = {.session = 1, .epoch = 0, .nonce = 1};
  session.prompt.assign(30, 7);
  session.answers = 100;
  source_->Add(session);
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
