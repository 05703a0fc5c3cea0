#include "lab/world/machine/network.h"

#include <algorithm>

#include "base/check.h"

namespace penstock::world {
namespace {

Network* g_network = nullptr;

}  // namespace

void Link::Send(std::function<void()> deliver) {
  if (closed_ || !from_->alive) return;
  waiting_.push_back(std::move(deliver));
  network_.scheduler().After(network_.Delay(from_, to_) + delay_, nullptr,
                             [self = shared_from_this()] { self->Deliver(); });
}

// One event for each message, and each event takes the front: the order is kept whatever the
// delays.
void Link::Deliver() {
  if (closed_ || !to_->alive) waiting_.clear();
  if (waiting_.empty()) return;
  if (network_.Blocked(from_, to_)) {
    network_.scheduler().After(kHeldUp, nullptr, [self = shared_from_this()] { self->Deliver(); });
    return;
  }
  arrived_.push_back(std::move(waiting_.front()));
  waiting_.pop_front();
  network_.scheduler().After(Duration::zero(), to_, [self = shared_from_this()] { self->Take(); });
}

// The receiver may be stopped meanwhile, and its events be put off to different times.
void Link::Take() {
  const std::function<void()> deliver = std::move(arrived_.front());
  arrived_.pop_front();
  deliver();
}

Network::Network(Scheduler& scheduler, uint64_t seed) : scheduler_(scheduler), random_(seed) {
  PENSTOCK_CHECK(g_network == nullptr);
  g_network = this;
}
Network::~Network() { g_network = nullptr; }

Network& Network::current() {
  PENSTOCK_CHECK(g_network != nullptr);
  return *g_network;
}

Duration Network::Delay(const Process* from, const Process* to) {
  Duration delay = random_.Between(Duration::zero(), faults_.delay_max);
  if (random_.Chance(faults_.spike)) delay *= 50;
  const double slowness = std::max(from->slowness, to->slowness);
  return std::chrono::duration_cast<Duration>(delay * slowness);
}

void Network::Block(int from, int to) {
  if (++blocked_[{from, to}] > 1) return;
  const uint64_t number = ++block_number_[{from, to}];
  scheduler_.After(kKeepalive, nullptr,
                   [this, from, to, number] { BreakIfStillBlocked(from, to, number); });
}

void Network::Unblock(int from, int to) {
  if (--blocked_[{from, to}] == 0) ++block_number_[{from, to}];
}

bool Network::Blocked(const Process* from, const Process* to) const {
  const auto found = blocked_.find({from->host, to->host});
  return found != blocked_.end() && found->second > 0;
}

// By index: telling an end may open new connections.
void Network::BreakIfStillBlocked(int from, int to, uint64_t number) {
  if (block_number_[{from, to}] != number) return;
  for (size_t i = 0; i < connections_.size(); ++i) {
    const std::shared_ptr<Connection> connection = connections_[i];
    const int client = connection->client->host, server = connection->server->host;
    const bool between = (client == from && server == to) || (client == to && server == from);
    if (between && !connection->over()) connection->Break(nullptr);
  }
  scheduler_.After(kKeepalive, nullptr,
                   [this, from, to, number] { BreakIfStillBlocked(from, to, number); });
}

void Network::Add(const std::shared_ptr<Connection>& connection) {
  if (connections_.size() >= forget_at_) Forget();
  connections_.push_back(connection);
}

void Network::Forget() {
  std::erase_if(connections_, [](const auto& connection) { return connection->over(); });
  forget_at_ = std::max<size_t>(256, 2 * connections_.size());
}

void Network::CloseServer(const Process* process, Duration grace) {
  const TimePoint shut_at = scheduler_.now() + grace;
  const auto open = [&] {
    std::vector<std::shared_ptr<Connection>> found;
    for (const auto& connection : connections_) {
      if (connection->server == process && !connection->shut()) found.push_back(connection);
    }
    return found;
  };
  for (auto left = open(); !left.empty(); left = open()) {
    if (scheduler_.now() >= shut_at) {
      for (const auto& connection : left) connection->Shut();
    }
    scheduler_.Sleep(kHeldUp);
  }
}

void Network::OnDeath(const Process* process) { BreakAll(process, process); }
void Network::OnSilence(const Process* process) { BreakAll(process, nullptr); }

void Network::BreakAll(const Process* process, const Process* dead) {
  for (size_t i = 0; i < connections_.size(); ++i) {
    const std::shared_ptr<Connection> connection = connections_[i];
    if (connection->over()) continue;
    if (connection->client == process || connection->server == process) connection->Break(dead);
  }
}

}  // namespace penstock::world
