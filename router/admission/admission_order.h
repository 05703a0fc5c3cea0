#pragma once

#include <compare>
#include <map>
#include <set>
#include <string>

#include "base/mutex.h"

namespace penstock {

// Room router/admission: bounds and orders what enters the router: open requests, the admission
// queue, and the backlog of a slow client. It knows tenants, priorities and token counts; it may
// not know workers, placement or sessions.

// A request's position in the admission queue; the least ticket is first.
struct AdmissionTicket {
  int32_t urgency = 0;  // the negative of the priority
  double tag = 0;       // virtual finish time, in tokens
  uint64_t number = 0;  // order of arrival, from 1 on; 0: no ticket
  auto operator<=>(const AdmissionTicket&) const = default;
};

// The order of requests that wait while all workers are full: higher priority first, and fair
// between tenants of equal priority by the tokens that they request. A tenant with a thousand
// requests waiting delays another tenant's first request by no more than one of its own. At most
// `waiting_max` requests wait. Any thread.
//
// Self-clocked fair queueing (S. Golestani, INFOCOM 1994): a request's tag is its tenant's previous
// tag, or the virtual time if that is later, plus its tokens. The virtual time is the tag of the
// request that was placed last.
class AdmissionOrder {
 public:
  explicit AdmissionOrder(size_t waiting_max) : waiting_max_(waiting_max) {}

  // Issues the ticket of a request; once for each. `tokens`: of prompt and answer together.
  AdmissionTicket Enter(const std::string& tenant, int32_t priority, double tokens);
  // True when another request that waits comes before this one.
  bool MustWait(const AdmissionTicket& ticket) const;
  // Adds the request to those that wait; again is allowed. False when the queue is full.
  bool Enqueue(const AdmissionTicket& ticket);
  // The request has been placed: removes it and advances the virtual time.
  void OnPlaced(const AdmissionTicket& ticket);
  // The request has ended. It need not be in the queue.
  void Remove(const AdmissionTicket& ticket);

  size_t waiting() const;
  bool full() const { return waiting() >= waiting_max_; }

 private:
  void Forget() REQUIRES(mutex_);

  const size_t waiting_max_;
  mutable Mutex mutex_;
  std::set<AdmissionTicket> waiting_ GUARDED_BY(mutex_);
  std::map<std::string, double> last_tags_ GUARDED_BY(mutex_);  // by tenant
  double now_ GUARDED_BY(mutex_) = 0;                           // virtual time
  uint64_t next_ GUARDED_BY(mutex_) = 1;
};

}  // namespace penstock
