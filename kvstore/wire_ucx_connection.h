#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "kvstore/wire.h"
#include "kvstore/wire_budget.h"
#include "kvstore/wire_packets.h"
#include "kvstore/wire_ucx_worker.h"

namespace penstock {

// One UCX endpoint and what is under way on it, in either direction: a lane of ours, or a peer's
// lane to us. Lives on the loop's thread. Once closed, it is done when every operation that UCX has
// taken has come back: only then is any buffer given up.
class UcxConnection {
 public:
  struct Shared {
    UcxWorker& worker;
    WireReceiver& receiver;
    WireBudget& budget;
    const std::string& instance;  // ours
  };
  struct Transfer {
    std::span<const std::byte> payload;
    std::function<void(absl::Status)> done;
  };

  UcxConnection(const Shared& shared, UcxWorker::Endpoint endpoint)
      : shared_(shared), endpoint_(endpoint) {}

  // For a lane: looks for `instance`. `on_greeted` is called once, with OK when it answers.
  void Greet(const std::string& instance, std::function<void(absl::Status)> on_greeted);
  void Put(const WirePacket& announcement, Transfer transfer);

  void OnArrival(UcxWorker::Arrival arrival);
  // No more of anything. Puts that are under way end with `status`.
  void Close(const absl::Status& status);
  bool closing() const { return closing_; }  // Any thread.
  // Called once it is closed and nothing is under way; the connection may be destroyed then, but
  // not in the call.
  void WhenClosed(std::function<void()> task);
  std::string transport() const { return shared_.worker.Transport(endpoint_); }

 private:
  struct Outgoing {
    WirePacket packet;  // UCX reads it until the send is over
    Transfer transfer;
    bool sent = false;
    bool answered = false;
    absl::Status answer;
  };
  struct Incoming {
    UcxWorker::Arrival arrival;
    WirePacket packet;
    std::byte* target = nullptr;
  };

  void OnHello(const WirePacket& hello);
  void OnEnded(const WirePacket& packet);
  void OnSent(uint64_t id, const absl::Status& status);
  void EndIfOver(uint64_t id);
  void ReceiveWaiting();
  void Receive(Incoming incoming);
  void OnReceived(const Incoming& incoming, const absl::Status& status);
  void SendPacket(const WirePacket& packet);
  void SendEnded(uint64_t id, const absl::Status& status);
  void OperationEnded();

  const Shared shared_;
  const UcxWorker::Endpoint endpoint_;
  bool greeted_ = false;
  std::atomic<bool> closing_{false};
  absl::Status close_status_;
  size_t operations_ = 0;  // that UCX has taken and not given back
  std::map<uint64_t, Outgoing> outgoing_;
  uint64_t next_id_ = 0;
  std::deque<Incoming> waiting_;  // announced by the peer, not yet to our receiver
  size_t receiving_ = 0;
  std::function<void(absl::Status)> on_greeted_;
  std::function<void()> when_closed_;
};

}  // namespace penstock
