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
  const RoleKeeper* roles = nullptr;  // outlives the report; null: no advice on roles
  std::string version;
  bool keys = false;  // API keys are required, so callers are told apart
};

// The JSON on one line. Invalid UTF-8 in a worker's name is replaced.
std::string JsonText(const Json& json);

// The state of the cluster as this router knows it, for the page and for `penstock top`. Its size
// is bounded, and it contains no text of prompts. Totals never fall, so two reports give rates. Any
// thread.
class ClusterReport {
 public:
  static constexpr size_t kWorkersMax = 256;
  static constexpr size_t kLinksMax = 256;
  static constexpr size_t kPrefixesMax = 12;
  static constexpr size_t kFinishedMax = 8;
  static constexpr size_t kHoldersMax = 16;

  explicit ClusterReport(ClusterReportArgs args) : args_(std::move(args)) {}

  // If keys are required, a caller sees the prefixes and the requests of its own tenant only.
  Json For(const Caller& caller) const;
  // For callers of the Admin service: those of all tenants, with the tenants' names.
  Json ForOperator() const;

 private:
  Json Router() const;
  Json Roles() const;
  Json Requests() const;
  // Whether requests met their latency targets; totals, in requests.
  Json Slo() const;
  // The last requests that ended, the newest first.
  Json Finished(const std::optional<std::string>& tenant, bool name_tenants) const;
  Json Workers(const std::vector<WorkerPicture>& pictures,
               const std::map<std::string, std::string>& names) const;
  Json Links(const std::map<std::string, std::string>& names) const;
  // `tenant` limits prefixes and requests to one tenant; nullopt: all tenants.
  Json Picture(const std::optional<std::string>& tenant, bool name_tenants) const;
  Json Prefixes(const std::vector<HotPrefix>& hottest, bool name_tenants,
                const std::vector<WorkerPicture>& pictures,
                const std::map<std::string, std::string>& names) const;

  const ClusterReportArgs args_;
  const TimePoint started_ = args_.clock.Now();
};

}  // namespace penstock
