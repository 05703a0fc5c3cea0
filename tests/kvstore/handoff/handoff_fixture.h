#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kvstore/handoff/kv_receiver.h"
#include "kvstore/handoff/kv_sender.h"

namespace penstock {

// Hands control messages of one stream straight to the other side, on the caller's thread.
class DirectToReceiver final : public HandoffSenderChannel {
 public:
  DirectToReceiver(KvReceiver& receiver, std::shared_ptr<HandoffReceiverChannel> back)
      : receiver_(receiver), back_(std::move(back)) {}
  void Send(const v1::HandoffSenderMessage& message) override {
    receiver_.OnControl(back_, message);
  }
  void Close() override { receiver_.OnControlClosed(back_.get()); }

 private:
  KvReceiver& receiver_;
  std::shared_ptr<HandoffReceiverChannel> back_;
};

class DirectToSender final : public HandoffReceiverChannel {
 public:
  DirectToSender(KvSender& sender, HandoffKey key) : sender_(sender), key_(key) {}
  void Send(const v1::HandoffReceiverMessage& message) override {
    sender_.OnControl(key_, message);
  }
  void Close() override { sender_.OnControlClosed(key_, absl::OkStatus()); }

 private:
  KvSender& sender_;
  HandoffKey key_;
};

// A value that one thread sets and another waits for.
template <class T>
class Awaited {
 public:
  void Set(T value) {
    std::lock_guard lock(mutex_);
    value_ = std::move(value);
    changed_.notify_all();
  }
  // The test fails after half a minute.
  T& Wait() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::seconds(30), [&] { return value_.has_value(); })) {
      ADD_FAILURE() << "nothing came within 30 s";
      std::abort();
    }
    return *value_;
  }
  bool ready() {
    std::lock_guard lock(mutex_);
    return value_.has_value();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<T> value_;
};

// The results of the two ends of one handoff.
struct SendResult {
  absl::Status status;
  KvSendStats stats{};
};
struct ReceiveResult {
  absl::Status status;
  ReceivedKv kv{};
};

// A distinct byte for each place of each layer of each block of a sequence.
inline std::byte KvByte(uint64_t seed, uint32_t block, int32_t layer, size_t offset) {
  uint64_t x = seed * 0x9e3779b97f4a7c15u + block * 0xbf58476d1ce4e5b9u +
               static_cast<uint64_t>(layer) * 0x94d049bb133111ebu + offset * 0xd6e8feb86659fd93u;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93u;
  return static_cast<std::byte>(x >> 56);
}

inline void FillLayer(const PagedKv& kv, const BlockRef& ref, uint64_t seed, uint32_t block,
                      int32_t layer) {
  std::byte* data = kv.Layer(ref.id(), layer);
  for (size_t i = 0; i < kv.layout.LayerBytes(); ++i) data[i] = KvByte(seed, block, layer, i);
}

inline bool LayerIsRight(const PagedKv& kv, const BlockRef& ref, uint64_t seed, uint32_t block,
                         int32_t layer) {
  const std::byte* data = kv.Layer(ref.id(), layer);
  for (size_t i = 0; i < kv.layout.LayerBytes(); ++i) {
    if (data[i] != KvByte(seed, block, layer, i)) return false;
  }
  return true;
}

inline bool KvIsRight(const PagedKv& kv, const std::vector<BlockRef>& blocks, uint64_t seed) {
  for (uint32_t block = 0; block < blocks.size(); ++block) {
    for (int32_t layer = 0; layer < kv.layout.layers; ++layer) {
      if (!LayerIsRight(kv, blocks[block], seed, block, layer)) return false;
    }
  }
  return true;
}

}  // namespace penstock
