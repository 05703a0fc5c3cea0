#pragma once

#include <compare>
#include <map>
#include <set>
#include <string>

#include "base/mutex.h"

namespace penstock {

// A request's place in the order of those that wait for room; the least is first.
struct AdmissionTicket {
  int32_t urgency = 0;  // the negative of the priority
  double tag = 0;       // of its tenant's turn
  uint64_t number = 0;  // 0: none
  auto operator<=>(const AdmissionTicket&) const = default;
};

// Who comes first when all workers are full: the higher priority, and among equals each tenant in
// turn by the tokens it asks for (self-clocked fair queueing), so that a tenant with a thousand
// requests waiting delays another's first one by no more than its own. Bounded. Any thread.
class AdmissionOrder {
 public:
  explicit AdmissionOrder(size_t waiting_max) : waiting_most_(waiting_max) {}

  // Once a request; `tokens` of prompt and answer together.
  AdmissionTicket Enter(const std::string& tenant, int32_t priority, double tokens);
  // Whether another one that waits comes before it.
  bool IsBehind(const AdmissionTicket& ticket) const;
  // False when so many wait already; fine again for one that waits.
  bool Wait(const AdmissionTicket& ticket);
  // It has been placed: its tenant's turn is over.
  void OnPlaced(const AdmissionTicket& ticket);
  // It waits no more. Whether it did does not matter.
  void Leave(const AdmissionTicket& ticket);

  size_t waiting() const;

 private:
  void Forget() REQUIRES(mutex_);

  const size_t waiting_most_;
  mutable Mutex mutex_;
  std::set<AdmissionTicket> waiting_ GUARDED_BY(mutex_);
  std::map<std::string, double> last_tags_ GUARDED_BY(mutex_);  // by tenant; above now_ only
  double now_ GUARDED_BY(mutex_) = 0;                           // tag of the latest that was placed
  uint64_t next_ GUARDED_BY(mutex_) = 1;
};

}  // namespace penstock
