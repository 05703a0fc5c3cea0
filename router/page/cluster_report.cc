#include "router/page/cluster_report.h"

#include <cmath>

#include "proto/names.h"

namespace penstock {
namespace {

using Names = std::map<std::string, std::string>;  // by endpoint

// Each worker's own name; if two workers have the same name, the endpoint is added.
Names NamesOf(const std::vector<WorkerPicture>& pictures) {
  std::map<std::string, int> count;
  for (const WorkerPicture& picture : pictures) ++count[picture.state.worker_id()];
  Names names;
  for (const WorkerPicture& picture : pictures) {
    const std::string& id = picture.state.worker_id();
    std::string name = id.empty() ? picture.endpoint : id;
    if (!id.empty() && count[id] > 1) name += "@" + picture.endpoint;
    names[picture.endpoint] = std::move(name);
  }
  return names;
}

std::string NameOf(const Names& names, const std::string& endpoint) {
  const auto found = names.find(endpoint);
  return found == names.end() ? endpoint : found->second;  // unlisted, or beyond kWorkersMax
}

Json TierJson(v1::KvTier tier, const v1::TierLoad& load) {
  return {{"tier", TierName(tier)},
          {"total_bytes", load.bytes_total()},
          {"used_bytes", load.bytes_used()},
          {"reserved_bytes", 0},
          {"cached_bytes", 0}};
}

Json TiersJson(const v1::WorkerState& state) {
  const uint64_t block = std::max<uint64_t>(1, state.kv_block_bytes());
  Json tiers = Json::array();
  tiers.push_back({{"tier", TierName(v1::DEVICE)},
                   {"total_bytes", state.kv_blocks_total() * block},
                   {"used_bytes", state.kv_blocks_used() * block},
                   {"reserved_bytes", state.kv_blocks_reserved() * block},
                   {"cached_bytes", state.kv_blocks_cached() * block}});
  if (state.has_dram()) tiers.push_back(TierJson(v1::DRAM, state.dram()));
  if (state.has_nvme()) tiers.push_back(TierJson(v1::NVME, state.nvme()));
  return tiers;
}

const char* KindName(TransferKind kind) {
  switch (kind) {
    case TransferKind::kPrefix:
      return "prefix";
    case TransferKind::kMove:
      return "move";
    case TransferKind::kHandoff:
      break;
  }
  return "handoff";
}

std::string_view PlaceName(BlockTier tier) {
  switch (tier) {
    case BlockTier::kDevice:
      return TierName(v1::DEVICE);
    case BlockTier::kDram:
      return TierName(v1::DRAM);
    case BlockTier::kNvme:
      return TierName(v1::NVME);
    case BlockTier::kExpected:
      break;
  }
  return "expected";  // a prompt with this prefix was just sent there
}

Json SpreadJson(const RequestMetrics::Spread& spread) {
  Json bounds = Json::array();
  for (const double bound : spread.bounds) {
    bounds.push_back(std::isfinite(bound) ? Json(bound) : Json());  // null: infinity
  }
  return {{"bounds", std::move(bounds)}, {"counts", spread.counts}};
}

double SecondsOf(Duration duration) { return std::chrono::duration<double>(duration).count(); }

// The stages with their start and length in milliseconds since the request was received.
Json StagesJson(const FinishedRequest& request) {
  Json stages = Json::array();
  for (const StageSpan& span : request.stages) {
    Json stage = {{"name", span.name},
                  {"start_ms", Milliseconds(span.start - request.received)},
                  {"ms", Milliseconds(span.end - span.start)}};
    if (!span.worker.empty()) stage["worker"] = span.worker;
    if (!span.reason.empty()) stage["reason"] = span.reason;
    stages.push_back(std::move(stage));
  }
  return stages;
}

Json FinishedJson(const FinishedRequest& request, TimePoint now) {
  Json json = {{"number", request.number},
               {"id", request.id},
               {"trace_id", request.trace_id},
               {"endpoint", request.endpoint},
               {"status", request.status},
               {"reason", request.reason},
               {"prompt_tokens", request.prompt_tokens},
               {"cached_tokens", request.cached_tokens},
               {"output_tokens", request.output_tokens},
               {"ended_s_ago", SecondsOf(now - request.end)},
               {"total_ms", Milliseconds(request.end - request.received)},
               {"first_token_ms", Json()},
               {"stages", StagesJson(request)}};
  if (request.first_token) json["first_token_ms"] = Milliseconds(*request.first_token);
  return json;
}

}  // namespace

std::string JsonText(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json ClusterReport::For(const Caller& caller) const {
  if (!args_.keys) return Picture(std::nullopt, false);
  return Picture(caller.tenant == nullptr ? "" : caller.tenant->name(), false);
}

Json ClusterReport::ForOperator() const { return Picture(std::nullopt, true); }

Json ClusterReport::Picture(const std::optional<std::string>& tenant, bool name_tenants) const {
  const std::vector<WorkerPicture> pictures = args_.fleet.table().Pictures(kWorkersMax);
  const Names names = NamesOf(pictures);
  return {{"router", Router()},
          {"requests", Requests()},
          {"slo", Slo()},
          {"finished", Finished(tenant, name_tenants)},
          {"roles", Roles()},
          {"workers", Workers(pictures, names)},
          {"links", Links(names)},
          {"prefixes", Prefixes(args_.fleet.table().hot_prefixes().Hottest(tenant, kPrefixesMax,
                                                                           args_.clock.Now()),
                                name_tenants, pictures, names)}};
}

Json ClusterReport::Router() const {
  WorkerTable& table = args_.fleet.table();
  int listed = 0;
  for (const auto& [kind, count] : table.Counts()) listed += count;
  return {{"version", args_.version},
          {"model", args_.model.name},
          {"uptime_s", Milliseconds(args_.clock.Now() - started_) / 1e3},
          {"ready", table.ready()},
          {"keys", args_.keys},
          {"workers", listed},
          {"context_tokens", table.max_model_len()}};
}

// Null: the router gives no advice.
Json ClusterReport::Roles() const {
  if (args_.roles == nullptr) return {};
  const v1::RoleAdvice advice = args_.roles->Latest();
  Json roles = {{"mode", advice.mode()},
                {"prefill_load", advice.prefill_load()},
                {"decode_load", advice.decode_load()},
                {"advice", Json()}};
  if (advice.worker().empty()) return roles;
  roles["advice"] = {{"worker", advice.worker()},
                     {"from", RoleName(advice.from())},
                     {"to", RoleName(advice.to())},
                     {"gain", advice.gain()},
                     {"why", advice.why()}};
  return roles;
}

Json ClusterReport::Requests() const {
  const RequestMetrics::Totals totals = args_.metrics.totals();
  return {{"open", args_.open.count()},
          {"waiting", args_.fleet.order().waiting()},
          {"ended", totals.ended},
          {"refused", totals.refused},
          {"prompt_tokens", totals.prompt_tokens},
          {"cached_tokens", totals.cached_tokens},
          {"first_token_s", SpreadJson(totals.first_token_s)},
          {"next_token_s", SpreadJson(totals.next_token_s)}};
}

Json ClusterReport::Slo() const {
  const RequestMetrics::Totals totals = args_.metrics.totals();
  const SloTargets& targets = args_.metrics.targets();
  return {{"ttft_target_s", SecondsOf(targets.first_token)},
          {"tpot_target_s", SecondsOf(targets.per_token)},
          {"succeeded", totals.succeeded},
          {"in_time", totals.in_time},
          {"ttft_missed", totals.first_late},
          {"tpot_missed", totals.tokens_slow},
          {"failed", totals.failed},
          {"refused_by", totals.refused_by}};
}

Json ClusterReport::Finished(const std::optional<std::string>& tenant, bool name_tenants) const {
  const TimePoint now = args_.clock.Now();
  Json finished = Json::array();
  for (const FinishedRequest& request : args_.metrics.finished().Latest(tenant, kFinishedMax)) {
    finished.push_back(FinishedJson(request, now));
    if (name_tenants) finished.back()["tenant"] = request.tenant;
  }
  return finished;
}

Json ClusterReport::Workers(const std::vector<WorkerPicture>& pictures, const Names& names) const {
  Json workers = Json::array();
  for (const WorkerPicture& picture : pictures) {
    const v1::WorkerState& state = picture.state;
    workers.push_back({{"name", NameOf(names, picture.endpoint)},
                       {"role", RoleName(state.role())},
                       {"state", picture.status},
                       {"life", fmt::format("{:x}", state.incarnation())},
                       {"running", state.running()},
                       {"waiting", state.waiting()},
                       {"waiting_tokens", state.waiting_tokens()},
                       {"booked", picture.requests},
                       {"transfers", state.handoffs()},
                       {"tokens", state.tokens()},
                       {"steps", state.steps()},
                       {"tiers", TiersJson(state)}});
  }
  return workers;
}

Json ClusterReport::Links(const Names& names) const {
  Json links = Json::array();
  for (const TransferStats::Link& link : args_.fleet.table().transfers().Latest(kLinksMax)) {
    links.push_back({{"from", NameOf(names, link.from)},
                     {"to", NameOf(names, link.to)},
                     {"kind", KindName(link.kind)},
                     {"open", link.open},
                     {"done", link.done},
                     {"bytes", link.bytes},
                     {"exposed_ms", link.exposed_ms},
                     {"transport", link.transport}});
  }
  return links;
}

Json ClusterReport::Prefixes(const std::vector<HotPrefix>& hottest, bool name_tenants,
                             const std::vector<WorkerPicture>& pictures, const Names& names) const {
  std::map<uint32_t, std::string> by_index;
  for (const WorkerPicture& picture : pictures) {
    if (picture.index) by_index[*picture.index] = NameOf(names, picture.endpoint);
  }
  const PrefixView& view = args_.fleet.table().prefixes();
  Json prefixes = Json::array();
  for (const HotPrefix& prefix : hottest) {
    Json where = Json::array();
    for (const auto& [worker, tier] : view.HoldersOf(prefix.last, kHoldersMax)) {
      const auto name = by_index.find(worker);
      if (name == by_index.end()) continue;
      where.push_back({{"worker", name->second}, {"tier", PlaceName(tier)}});
    }
    prefixes.push_back({{"tokens", prefix.tokens},
                        {"hits", prefix.hits},
                        {"recent_hits", prefix.recent_hits},
                        {"where", std::move(where)}});
    if (name_tenants) prefixes.back()["tenant"] = prefix.tenant;
  }
  return prefixes;
}

}  // namespace penstock
