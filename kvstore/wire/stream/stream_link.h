#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "kvstore/wire/net/link.h"
#include "kvstore/wire/stream/stream_input.h"
#include "kvstore/wire/stream/stream_output.h"

namespace penstock {

// A link over one TCP connection, which the caller's end opens to the peer's door. A message larger
// than WireLink::kEagerMax is announced; its parts follow when the receiver has asked for them, so
// that nothing is sent in vain, and targets are the receiver's choice.
class StreamLink final : public WireLink, public WireLoop::Source {
 public:
  // `address` names the link at the called end, and is empty at the other.
  StreamLink(WireLinks::Args args, std::string address);
  ~StreamLink() override;

  const std::string& address() const override { return address_; }
  absl::Status Connect(const std::string& peer) override;
  bool connected() const override { return fd_ >= 0; }
  void Send(std::span<const std::byte> header, const WirePayload& payload, Done done) override;
  void Receive(const Arrival& arrival, const WireTarget& target, Done done) override;
  void Drop(const Arrival& arrival) override;
  void Cut() override;
  std::string Transport() const override { return secret_.empty() ? "tcp" : "tcp, sealed"; }

  // At the called end: takes over the caller's connection, unless there is one already or `hello`
  // does not prove that the caller knows the secret.
  bool Adopt(int fd, const StreamHello& hello);
  // Called when the link no longer waits for a connection.
  std::function<void()> on_settled;

  bool Progress() override;
  bool Arm() override;

 private:
  struct Outgoing {
    std::span<const std::byte> payload;
    Done done;
    bool wanted = false;
  };
  struct Incoming {
    size_t size = 0;
    std::byte* target = nullptr;  // null: not asked for yet
    size_t received = 0;
    Done done;
  };

  absl::Status Watch(int fd);
  void OnReady(uint32_t events);
  absl::Status FinishConnecting();
  absl::Status Read();
  bool CanWrite() const;
  bool ExpectsBytes() const;
  void Write();
  absl::StatusOr<std::byte*> TargetOf(const StreamFrame& part);
  absl::Status OnFrame(const StreamFrame& frame, std::span<const std::byte> body);
  absl::Status OnMessage(const StreamFrame& frame, std::span<const std::byte> body);
  absl::Status OnAnswer(const StreamFrame& frame);
  absl::Status OnPart(const StreamFrame& frame);
  void Fail(absl::Status status);
  void PostEvent(std::function<void()> event);
  void DeliverEvents();

  WireLoop& loop_;
  const Events events_;
  const std::string secret_;
  const std::optional<SocketEndpoint> peer_;
  const std::string address_;
  StreamOutput output_;
  StreamInput input_;
  int fd_ = -1;
  bool connecting_ = false;
  bool blocked_ = false;  // the connection takes no more bytes for now
  bool failed_ = false;
  bool cut_ = false;
  uint64_t next_id_ = 1;
  uint64_t last_id_ = 0;  // of the peer's messages
  std::map<uint64_t, Outgoing> outgoing_;
  std::map<uint64_t, Incoming> incoming_;
  std::deque<std::function<void()>> pending_events_;
  std::chrono::steady_clock::time_point moved_;  // bytes, last
};

}  // namespace penstock
