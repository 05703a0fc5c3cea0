#include "router/fleet/fleet.h"

#include "base/log/log.h"
#include "base/rpc/tls.h"

namespace penstock {
namespace {

constexpr Duration kTick = std::chrono::milliseconds(50);

}  // namespace

absl::StatusOr<std::unique_ptr<Fleet>> Fleet::Create(FleetOptions options) {
  ASSIGN_OR_RETURN(auto discovery, Discovery::Create(options.discovery));
  return std::unique_ptr<Fleet>(new Fleet(std::move(options), std::move(discovery)));
}

void Fleet::Run() {
  thread_ = std::thread([this] { Loop(); });
}

Fleet::Fleet(FleetOptions options, std::unique_ptr<Discovery> discovery)
    : options_(std::move(options)),
      order_(options_.queued_max),
      discovery_(std::move(discovery)),
      credentials_(ChannelCredentialsOf(options_.cluster)),
      table_(std::make_shared<WorkerTable>(clock_, options_.stale_after, options_.metrics,
                                           options_.peer_reads, options_.rule)) {}

Fleet::~Fleet() {
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
  for (auto& [endpoint, link] : links_) link->Close();  // closes all before waiting for each
  links_.clear();
}

void Fleet::CallOnChange(const AdmissionTicket& ticket, std::function<void()> once) {
  MutexLock lock(mutex_);
  waiting_.emplace(ticket, std::move(once));
}

void Fleet::OnChange() {
  MutexLock lock(mutex_);
  change_pending_ = true;
  changed_.NotifyAll();
}

bool Fleet::WaitForChange() {
  MutexLock lock(mutex_);
  if (!change_pending_ && !stopped_) changed_.WaitFor(mutex_, kTick);
  change_pending_ = false;
  return !stopped_;
}

void Fleet::Loop() {
  TimePoint next_poll = clock_.Now();
  do {
    const TimePoint now = clock_.Now();
    const bool poll_due = now >= next_poll;
    if (poll_due) next_poll = now + options_.poll_every;
    Tick(now, poll_due);
  } while (WaitForChange());
}

void Fleet::Tick(TimePoint now, bool poll_due) {
  if (poll_due) SyncLinks(discovery_->Poll());
  for (const std::string& silent : table_->Sweep()) links_[silent]->Drop();
  for (auto& [endpoint, link] : links_) link->Tick(now);
  table_->prefixes().Sweep();
  if (poll_due && options_.on_poll) options_.on_poll(now);
  const bool ready = table_->ready();
  if (reported_ready_ != ready) {
    reported_ready_ = ready;
    if (options_.on_readiness) options_.on_readiness(ready);
  }
  const uint64_t version = table_->version();
  if (version != seen_version_ || poll_due) CallWaiting();
  seen_version_ = version;
}

void Fleet::SyncLinks(const std::set<std::string>& endpoints) {
  std::erase_if(links_, [&](const auto& entry) { return !endpoints.contains(entry.first); });
  for (const std::string& endpoint : endpoints) {
    if (links_.contains(endpoint)) continue;
    Log(LogLevel::kInfo, "worker_listed", {{"worker", endpoint}});
    links_[endpoint] =
        std::make_unique<WatchLink>(endpoint, credentials_, table_, [this] { OnChange(); });
  }
}

void Fleet::CallWaiting() {
  std::multimap<AdmissionTicket, std::function<void()>> waiting;
  {
    MutexLock lock(mutex_);
    waiting.swap(waiting_);
  }
  for (const auto& [ticket, once] : waiting) once();
}

}  // namespace penstock
