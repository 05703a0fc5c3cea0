#pragma once

#include <string>

#include "base/clock.h"
#include "router/admission/open_requests.h"
#include "router/fleet/fleet.h"
#include "router/fleet/role_keeper.h"
#include "router/metrics/request_metrics.h"
#include "router/request/json.h"
#include "router/request/served_model.h"
#include "router/request/tenant.h"

namespace penstock {

struct ClusterReportArgs {
  const ServedModel& model;  // these outlive the report
  Fleet& fleet;
  const OpenRequests& open;
  const RequestMetrics& metrics;
  const Clock& clock;
  const RoleKeeper* roles = nullptr;  // likewise; null: no advice on them
  std::string version;
  bool keys = false;  // callers are told apart
};

// On one line; workers say what they are called in whatever bytes.
std::string JsonText(const Json& json);

// What the page shows of the cluster: what this router knows at the moment, bounded, without a word
// of any prompt. Totals only ever rise, so that who asks twice has rates. Any thread.
class ClusterReport {
 public:
  static constexpr size_t kWorkersMax = 256;
  static constexpr size_t kLinksMax = 256;
  static constexpr size_t kPrefixesMax = 12;
  static constexpr size_t kHoldersMax = 16;

  explicit ClusterReport(ClusterReportArgs args) : args_(std::move(args)) {}

  // With keys, a caller sees the prefixes of his own tenant and nobody else's.
  Json For(const Caller& caller) const;
  // For whoever may use Admin: the prefixes of all tenants, and whose they are.
  Json ForOperator() const;

 private:
  Json Router() const;
  Json Roles() const;
  Json Requests() const;
  Json Workers(const std::vector<WorkerPicture>& pictures,
               const std::map<std::string, std::string>& names) const;
  Json Links(const std::map<std::string, std::string>& names) const;
  // Of one tenant, or of all (nullopt).
  Json Picture(const std::optional<std::string>& tenant, bool name_tenants) const;
  Json Prefixes(const std::vector<HotPrefix>& hottest, bool name_tenants,
                const std::vector<WorkerPicture>& pictures,
                const std::map<std::string, std::string>& names) const;

  const ClusterReportArgs args_;
  const TimePoint started_ = args_.clock.Now();
};

}  // namespace penstock
