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

struct FleetOptions {
  DiscoveryConfig discovery;
  std::shared_ptr<TlsIdentity> cluster = nullptr;  // shown to workers; null: plain
  uint32_t queued_max = 1024;                      // requests that wait for room
  Duration stale_after = std::chrono::seconds(3);
  Duration poll_every = std::chrono::seconds(1);  // of the file and the names
  PeerReadPolicy peer_reads;
  PlacementMetrics* metrics = nullptr;  // outlives the fleet; null: none
  // Whether a request could be placed; on the fleet's thread, at the start and on every change.
  std::function<void(bool ready)> on_readiness;
  // Every poll_every; on the fleet's thread.
  std::function<void(TimePoint now)> on_poll;
};

// Keeps a watch on every worker that discovery finds. Its thread opens watches, notices silence and
// tells who waits for workers. Any thread.
class Fleet {
 public:
  // Errors of Discovery. Knows no worker before Run.
  static absl::StatusOr<std::unique_ptr<Fleet>> Create(FleetOptions options);
  // Starts its thread. Once.
  void Run();
  ~Fleet();
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;

  WorkerTable& table() { return *table_; }
  // Calls `once` on the fleet's thread after the next news of any worker, or within poll_every; in
  // the order of the tickets.
  void CallOnNews(const AdmissionTicket& ticket, std::function<void()> once) EXCLUDES(mutex_);
  AdmissionOrder& order() { return order_; }

 private:
  Fleet(FleetOptions options, std::unique_ptr<Discovery> discovery);

  void Loop();
  void Follow(const std::set<std::string>& endpoints);
  void Tick(TimePoint now, bool poll_due);
  void TellNews();
  bool WaitForNews() EXCLUDES(mutex_);  // false: stop
  void OnNews() EXCLUDES(mutex_);

  const FleetOptions options_;
  SteadyClock clock_;
  AdmissionOrder order_;
  std::unique_ptr<Discovery> discovery_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;  // shared with channels
  std::shared_ptr<WorkerTable> table_;                           // shared with bookings

  // The fleet's thread only.
  std::map<std::string, std::unique_ptr<WatchLink>> links_;
  uint64_t seen_version_ = 0;
  std::optional<bool> told_ready_;

  mutable Mutex mutex_;
  CondVar changed_;
  bool stopped_ GUARDED_BY(mutex_) = false;
  bool news_ GUARDED_BY(mutex_) = false;
  std::multimap<AdmissionTicket, std::function<void()>> waiting_ GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace penstock
