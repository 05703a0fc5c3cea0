#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lab/world/machine/random.h"
#include "lab/world/machine/scheduler.h"

namespace penstock::world {

// How bad the network is. Chances are out of 1000.
struct NetworkFaults {
  Duration delay_max = std::chrono::milliseconds(1);
  uint64_t spike = 0;  // a message is 50 times as late
  uint64_t slab_lost = 0;
  uint64_t slab_damaged = 0;
  uint64_t slab_repeated = 0;  // an old copy arrives long after
  uint64_t end_lost = 0;       // a slab lands, but its sender is told that it failed
  uint64_t put_refused = 0;
  uint64_t slab_stuck = 0;   // neither lands nor fails until its lane is closed
  uint64_t early_end = 0;    // a sender is told of a slab's end a while before the slab lands
  uint64_t call_broken = 0;  // a message ends its call instead
};

// How long a fault-free network takes, beyond the delay of a message.
struct NetworkTimes {
  double ns_per_byte = 0;       // of a slab; the slabs of one process leave one after the other
  Duration cache_news_delay{};  // of the news about caches, which routers watch
};

// A connection between two processes ends when no message has passed for this time: gRPC's
// keepalive, as the code under test sets it.
inline constexpr Duration kKeepalive = std::chrono::seconds(4);

// How often something that is held up is tried again.
inline constexpr Duration kHeldUp = std::chrono::milliseconds(7);

// One direction between two processes, for one call or lane: ordered, and held up while the network
// does not let it pass.
class Link : public std::enable_shared_from_this<Link> {
 public:
  Link(class Network& network, Process* from, Process* to)
      : network_(network), from_(from), to_(to) {}
  // `deliver` runs in `to`, later and in order.
  void Send(std::function<void()> deliver);
  void Close() { closed_ = true; }
  // Delays every message, in addition to the network's delay.
  void SetDelay(Duration delay) { delay_ = delay; }

 private:
  void Deliver();
  void Take();

  Network& network_;
  Process* const from_;
  Process* const to_;
  std::deque<std::function<void()>> waiting_;  // on their way
  std::deque<std::function<void()>> arrived_;  // `to_` has not run them yet
  Duration delay_{};
  bool closed_ = false;
};

// Something between two processes that ends when they lose each other.
class Connection {
 public:
  virtual ~Connection() = default;
  // Each living end is told. `dead`: the process that died; nullptr: the network failed.
  virtual void Break(const Process* dead) = 0;
  virtual bool over() const = 0;
  // The server does not serve it any more.
  virtual void Shut() {}
  virtual bool shut() const { return true; }
  Process* client = nullptr;
  Process* server = nullptr;
};

// The network of one world: which host reaches which, and how fast.
class Network {
 public:
  Network(Scheduler& scheduler, uint64_t seed);
  ~Network();
  // The network of the world that runs now.
  static Network& current();

  Scheduler& scheduler() { return scheduler_; }
  Random& random() { return random_; }
  NetworkFaults& faults() { return faults_; }
  NetworkTimes& times() { return times_; }
  Duration Delay(const Process* from, const Process* to);

  // Nothing passes from one host to the other. Counts, so that several can overlap.
  void Block(int from, int to);
  void Unblock(int from, int to);
  bool Blocked(const Process* from, const Process* to) const;

  void Add(const std::shared_ptr<Connection>& connection);
  // Ends what the process serves after `grace`, and waits until it has ended.
  void CloseServer(const Process* process, Duration grace);
  // The process has been silent for too long: its connections break.
  void OnSilence(const Process* process);
  // Its connections break; their other ends hear of it.
  void OnDeath(const Process* process);

 private:
  void BreakIfStillBlocked(int from, int to, uint64_t since);
  void BreakAll(const Process* process, const Process* dead);
  void Forget();

  Scheduler& scheduler_;
  Random random_;
  NetworkFaults faults_;
  NetworkTimes times_;
  std::map<std::pair<int, int>, int> blocked_;
  std::map<std::pair<int, int>, uint64_t> block_number_;
  std::vector<std::shared_ptr<Connection>> connections_;
  size_t forget_at_ = 256;
};

}  // namespace penstock::world
