#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/tls/tls_identity.h"
#include "router/admission/admission_order.h"
#include "router/fleet/discovery.h"
#include "router/fleet/watch_link.h"
#include "router/fleet/worker_table.h"

namespace penstock {

// Room router/fleet: the workers: their discovery, the watch of each one's state and cache events,
// their last state with this router's reservations, the calls to them, and the advice on their
// roles. It knows placement and admission order; it may not know sessions, client requests or
// public protocols.

struct FleetOptions {
  DiscoveryConfig discovery;
  std::shared_ptr<TlsIdentity> cluster = nullptr;  // TLS to workers; nullptr: plaintext
  uint32_t queued_max = 1024;                      // requests in the admission queue
  Duration stale_after = std::chrono::seconds(3);
  Duration poll_every = std::chrono::seconds(1);  // interval of discovery
  PeerReadPolicy peer_reads;
  PlacementRule rule = nullptr;         // nullptr: penstock::Place
  PlacementMetrics* metrics = nullptr;  // outlives the fleet; nullptr: none
  // Called with WorkerTable::ready() at the start and on every change; on the fleet's thread.
  std::function<void(bool ready)> on_readiness;
  // Called every poll_every; on the fleet's thread.
  std::function<void(TimePoint now)> on_poll;
};

// Watches every worker that discovery finds. Its thread opens watches, detects silent workers and
// calls the requests that wait for workers. Any thread.
class Fleet {
 public:
  // Errors of Discovery::Create. The worker table is empty until Run.
  static absl::StatusOr<std::unique_ptr<Fleet>> Create(FleetOptions options);
  // Starts the fleet's thread. Call it once.
  void Run();
  ~Fleet();
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;

  WorkerTable& table() { return *table_; }
  // Calls `once` on the fleet's thread after the next change of any worker, at the latest after
  // poll_every. Callbacks run in the order of their tickets.
  void CallOnChange(const AdmissionTicket& ticket, std::function<void()> once) EXCLUDES(mutex_);
  AdmissionOrder& order() { return order_; }

 private:
  Fleet(FleetOptions options, std::unique_ptr<Discovery> discovery);

  void Loop();
  void SyncLinks(const std::set<std::string>& endpoints);
  void Tick(TimePoint now, bool poll_due);
  void CallWaiting();
  bool WaitForChange() EXCLUDES(mutex_);  // false: stop
  void OnChange() EXCLUDES(mutex_);

  const FleetOptions options_;
  SteadyClock clock_;
  AdmissionOrder order_;
  std::unique_ptr<Discovery> discovery_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;  // shared with channels
  std::shared_ptr<WorkerTable> table_;                           // shared with reservations

  // Only the fleet's thread uses these.
  std::map<std::string, std::unique_ptr<WatchLink>> links_;
  uint64_t seen_version_ = 0;
  std::optional<bool> reported_ready_;

  mutable Mutex mutex_;
  CondVar changed_;
  bool stopped_ GUARDED_BY(mutex_) = false;
  bool change_pending_ GUARDED_BY(mutex_) = false;
  std::multimap<AdmissionTicket, std::function<void()>> waiting_ GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace penstock
