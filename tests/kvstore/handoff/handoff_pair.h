#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

#include "kvstore/wire/wire_loopback.h"
#include "tests/kvstore/handoff/handoff_fixture.h"

namespace penstock {

inline constexpr KvLayout kPairLayout{
    .layers = 6, .kv_heads = 2, .head_dim = 32, .block_tokens = 16};
inline constexpr uint64_t kPairModel = 0x1234;

class NoReceiver final : public WireReceiver {
 public:
  absl::StatusOr<std::byte*> OnAnnounced(std::span<const std::byte>, size_t) override {
    return absl::UnimplementedError("prefill workers receive nothing");
  }
  void OnLanded(std::span<const std::byte>, std::span<std::byte>) override {}
  void OnLost(std::span<const std::byte>, std::byte*) override {}
};

// Both ends of handoffs over the loopback wire, with real threads. The sender is stopped first, as
// a worker does it.
class HandoffPair : public testing::Test {
 protected:
  void SetUp() override { Build({}, {}); }

  // For memory of their own, which goes with ReleaseMemory.
  virtual void PrepareSource(KvSenderOptions& /*options*/) {}
  virtual void PrepareTarget(KvReceiver& /*receiver*/) {}
  virtual void ReleaseMemory() {}

  void Build(KvSenderOptions sender_options, KvReceiverOptions receiver_options,
             KvLayout target_layout = kPairLayout, uint64_t target_model = kPairModel) {
    TearDown();
    source_ = *BlockPool::Create(kPairLayout, 1024);
    target_ = *BlockPool::Create(target_layout, 64);
    PrepareSource(sender_options);
    receiver_ = std::make_unique<KvReceiver>(
        receiver_options, HandoffFormat{target_model, target_layout}, clock_, *target_);
    PrepareTarget(*receiver_);
    target_wire_ = MakeLoopbackWire(hub_, *receiver_);
    source_wire_ = MakeLoopbackWire(hub_, no_receiver_);
    receiver_->SetWireAddress(target_wire_->address());
    sender_ = std::make_unique<KvSender>(sender_options, HandoffFormat{kPairModel, kPairLayout},
                                         clock_, *source_wire_, source_->view());
    sender_->Launch();
    ticker_ = std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        receiver_->Tick();
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    });
  }

  void TearDown() override {
    ticker_ = {};
    if (sender_) sender_->Stop();
    source_wire_.reset();
    target_wire_.reset();
    receiver_.reset();
    sender_.reset();  // After the receiver, whose threads call it until then.
    ReleaseMemory();
    handoffs_.clear();
    target_.reset();  // CHECKs that nothing leaked.
    source_.reset();
  }

  struct Handoff {
    HandoffKey key;
    uint32_t tokens = 0;
    std::vector<BlockRef> blocks{};
    std::vector<KvCodecSpec> sends_lossy{}, takes_lossy{};  // that either side's request allows
    Awaited<bool> admitted{};
    Awaited<SendResult> sent{};
    Awaited<ReceiveResult> received{};
  };

  // They live until TearDown: callbacks write into them.
  Handoff& NewHandoff(const HandoffKey& key, uint32_t tokens) {
    handoffs_.emplace_back(new Handoff{.key = key, .tokens = tokens});
    return *handoffs_.back();
  }

  absl::Status Expect(Handoff& handoff, int64_t more_blocks = 0) {
    return receiver_->Expect({.key = handoff.key,
                              .tokens = handoff.tokens,
                              .blocks = kPairLayout.BlocksFor(handoff.tokens) + more_blocks,
                              .lossy = handoff.takes_lossy,
                              .first = {.choices = 1, .vocab = 100},
                              .on_admitted = [&] { handoff.admitted.Set(true); },
                              .on_committed =
                                  [&](ReceivedKv kv) {
                                    handoff.received.Set({absl::OkStatus(), std::move(kv)});
                                  },
                              .on_failed =
                                  [&](const absl::Status& why) {
                                    handoff.received.Set({why, {}});
                                  }});
  }

  void Start(Handoff& handoff) {
    auto back = std::make_shared<DirectToSender>(*sender_, handoff.key);
    auto channel = std::make_shared<DirectToReceiver>(*receiver_, back);
    ASSERT_TRUE(sender_
                    ->Start({.key = handoff.key,
                             .tokens = handoff.tokens,
                             .lossy = handoff.sends_lossy,
                             .channel = channel,
                             .on_committed =
                                 [&](const KvSendStats& stats) {
                                   handoff.sent.Set({absl::OkStatus(), stats});
                                 },
                             .on_failed =
                                 [&](const absl::Status& why) {
                                   handoff.sent.Set({why, {}});
                                 }})
                    .ok());
  }

  // As an engine does it: chunk by chunk, layer group by layer group, into pages of the pool.
  void Compute(Handoff& handoff, uint32_t chunk, int32_t group = 2) {
    auto credit = source_->Reserve(kPairLayout.BlocksFor(handoff.tokens));
    ASSERT_TRUE(credit.ok());
    handoff.blocks = credit->Take(credit->blocks());
    for (uint32_t first = 0; first < handoff.tokens; first += chunk) {
      const uint32_t last = std::min(handoff.tokens, first + chunk);
      for (int32_t layer = 0; layer < kPairLayout.layers; layer += group) {
        for (int32_t l = layer; l < layer + group; ++l) {
          for (uint32_t b = first / 16; b * 16 < last; ++b) {
            FillLayer(source_->view(), handoff.blocks[b], handoff.key.session, b, l);
          }
        }
        sender_->SendLayers(handoff.key, {.first_layer = layer,
                                          .last_layer = layer + group,
                                          .first_token = first,
                                          .last_token = last,
                                          .blocks = handoff.blocks});
      }
    }
    v1::TokenOut token;
    token.set_token(42);
    sender_->Finish(handoff.key, {token});
    handoff.blocks.clear();  // The sender holds its own.
  }

  // Waits until both sides have let go of everything.
  void ExpectAllFree() {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (source_->blocks_used() + target_->blocks_used() + target_->blocks_reserved() > 0 ||
           sender_->handoffs() > 0) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline)
          << source_->blocks_used() << " " << target_->blocks_used() << " "
          << target_->blocks_reserved() << " " << sender_->handoffs();
      std::this_thread::yield();
    }
  }

  SteadyClock clock_;
  LoopbackHub hub_;
  NoReceiver no_receiver_;
  std::unique_ptr<BlockPool> source_;
  std::unique_ptr<BlockPool> target_;
  std::vector<std::unique_ptr<Handoff>> handoffs_;
  std::unique_ptr<KvReceiver> receiver_;
  std::unique_ptr<Wire> target_wire_;
  std::unique_ptr<Wire> source_wire_;
  std::unique_ptr<KvSender> sender_;
  std::jthread ticker_;
};

}  // namespace penstock
