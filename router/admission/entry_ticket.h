#pragma once

#include <memory>

#include "router/admission/open_requests.h"
#include "router/metrics/request_metrics.h"
#include "router/request/tenant.h"

namespace penstock {

// One request's place among all that are open, and among its tenant's. Given back when it goes.
struct EntryTicket {
  Endpoint endpoint = Endpoint::kGenerate;
  std::unique_ptr<OpenRequests::Place> place;
  Caller caller;
  std::shared_ptr<void> visit;  // leaves the tenant; null where there is none
};

}  // namespace penstock
