#pragma once

#include <memory>

#include "router/admission/open_requests.h"
#include "router/metrics/request_metrics.h"
#include "router/request/tenant.h"

namespace penstock {

// One request's share of max_requests and of its tenant's open requests. The destructor releases
// both. Movable; one thread at a time.
struct EntryTicket {
  Endpoint endpoint = Endpoint::kGenerate;
  std::unique_ptr<OpenRequests::Slot> slot;
  Caller caller;
  std::shared_ptr<void> tenant_slot;  // leaves the tenant when destroyed; nullptr: no tenant
};

}  // namespace penstock
