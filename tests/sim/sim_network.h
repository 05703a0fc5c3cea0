#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kvstore/handoff/handoff_channel.h"
#include "kvstore/handoff/kv_receiver.h"
#include "kvstore/handoff/kv_sender.h"
#include "kvstore/wire/wire.h"
#include "tests/sim/simulation.h"

namespace penstock::sim {

// How bad this world's network is. Chances are out of 1000.
struct NetworkFaults {
  Duration delay_max = std::chrono::milliseconds(5);  // of a message or slab
  uint64_t slab_lost = 0;
  uint64_t slab_damaged = 0;
  uint64_t slab_replayed = 0;  // comes again later, as an old network might deliver it
  uint64_t end_lost = 0;       // a slab lands, but its sender hears that it failed
  uint64_t put_refused = 0;
  uint64_t early_end = 0;   // a Put ends well a while before the receiver is told of the slab
  uint64_t slab_stuck = 0;  // neither lands nor ends, until its lane is closed
};

// A process on the network: one incarnation of a worker.
struct Process {
  std::string name;
  int host = 0;
  bool alive = true;
  TimePoint paused_until{};        // as by SIGSTOP
  KvSender* sender = nullptr;      // of a prefill worker
  KvReceiver* receiver = nullptr;  // of a decode worker
};
using ProcessRef = std::shared_ptr<Process>;

class SimNetwork;

// One control stream: ordered and reliable until it breaks, and silent while its hosts are
// partitioned.
class SimStream : public std::enable_shared_from_this<SimStream> {
 public:
  SimStream(SimNetwork& network, HandoffKey key, ProcessRef prefill, ProcessRef decode);
  // The channel that the prefill worker's KvSender gets.
  std::shared_ptr<HandoffSenderChannel> sender_channel();
  // Both ends learn of it, each when the network lets it.
  void Break();
  bool connects(const Process& process) const;
  TimePoint opened_at() const { return opened_at_; }
  // True when a message has come to the decode worker before `when`.
  bool heard_by_decode(TimePoint when) const { return heard_at_ && *heard_at_ < when; }
  // Each has been told that it has ended; the decode worker only counts if it knew of it.
  bool prefill_told() const { return prefill_told_; }
  bool decode_told() const { return decode_told_at_ && heard_at_; }

 private:
  friend class SimNetwork;
  class SenderEnd;
  class ReceiverEnd;
  using Delivery = std::function<void()>;
  // Both directions, in order: a message, or the end of the stream.
  void ToDecode(Delivery delivery);
  void ToPrefill(Delivery delivery);
  void Deliver(std::deque<Delivery>* queue, const ProcessRef& at);
  void TellDecode();
  void TellPrefill(const absl::Status& why);

  SimNetwork& network_;
  const HandoffKey key_;
  const ProcessRef prefill_;
  const ProcessRef decode_;
  const TimePoint opened_at_;
  std::optional<TimePoint> heard_at_;  // the first message, by the decode worker
  std::shared_ptr<HandoffReceiverChannel> receiver_end_;
  std::deque<Delivery> to_decode_;
  std::deque<Delivery> to_prefill_;
  bool broken_ = false;
  bool prefill_told_ = false;
  std::optional<TimePoint> decode_told_at_;
  bool sender_closed_ = false;
  bool receiver_closed_ = false;
};

struct SimTransfer;

// The network of one world: control streams and wires, with the faults it was given.
class SimNetwork {
 public:
  SimNetwork(Simulation& simulation, NetworkFaults faults)
      : simulation_(simulation), faults_(faults) {}
  ~SimNetwork();

  // `address` is where a decode worker's slabs go.
  void Attach(const std::string& address, const ProcessRef& decode);
  std::unique_ptr<Wire> MakeWire(const ProcessRef& prefill);
  std::shared_ptr<SimStream> OpenStream(const HandoffKey& key, const ProcessRef& prefill,
                                        const ProcessRef& decode);
  void Partition(int host_a, int host_b, bool on);
  // Tells the others that a process died. Its objects may be destroyed after this.
  void Kill(const ProcessRef& process);
  // Breaks one stream that is open, if there is one.
  void BreakSomeStream();

 private:
  friend class SimStream;
  friend class SimLane;
  using TransferRef = std::shared_ptr<SimTransfer>;

  bool Partitioned(const Process& a, const Process& b) const;
  // True when a message from a may reach b now; it never will when b is dead.
  bool Passes(const Process& a, const Process& b) const;
  Duration Delay() { return simulation_.Between(Duration::zero(), faults_.delay_max); }
  void Announce(const TransferRef& transfer);
  void Land(const TransferRef& transfer);
  void End(const TransferRef& transfer, const absl::Status& status);
  void Replay(const std::string& address, std::vector<std::byte> header,
              std::vector<std::byte> payload);

  Simulation& simulation_;
  const NetworkFaults faults_;
  std::map<std::string, ProcessRef> addresses_;
  std::multiset<std::pair<int, int>> partitions_;  // several can be on at once
  std::vector<std::weak_ptr<SimStream>> streams_;
};

}  // namespace penstock::sim
