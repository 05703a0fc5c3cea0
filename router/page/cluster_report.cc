#include "router/page/cluster_report.h"

#include <cmath>

namespace penstock {
namespace {

using Names = std::map<std::string, std::string>;  // by endpoint

// What each worker calls itself, and where two say the same, where it is.
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
  return found == names.end() ? endpoint : found->second;  // it is gone, or one too many
}

Json TierJson(const char* name, const v1::TierLoad& load) {
  return {{"tier", name},
          {"total_bytes", load.bytes_total()},
          {"used_bytes", load.bytes_used()},
          {"promised_bytes", 0},
          {"cached_bytes", 0}};
}

Json TiersJson(const v1::WorkerState& state) {
  const uint64_t block = std::max<uint64_t>(1, state.kv_block_bytes());
  Json tiers = Json::array();
  tiers.push_back({{"tier", "device"},
                   {"total_bytes", state.kv_blocks_total() * block},
                   {"used_bytes", state.kv_blocks_used() * block},
                   {"promised_bytes", state.kv_blocks_promised() * block},
                   {"cached_bytes", state.kv_blocks_cached() * block}});
  if (state.has_dram()) tiers.push_back(TierJson("dram", state.dram()));
  if (state.has_nvme()) tiers.push_back(TierJson("nvme", state.nvme()));
  return tiers;
}

const char* RoleOf(v1::WorkerState::Role role) {
  switch (role) {
    case v1::WorkerState::PREFILL:
      return "prefill";
    case v1::WorkerState::DECODE:
      return "decode";
    default:
      return "unknown";
  }
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

const char* TierName(BlockTier tier) {
  constexpr const char* kNames[kBlockTiers] = {"device", "dram", "nvme", "expected"};
  return kNames[static_cast<size_t>(tier)];
}

Json SpreadJson(const RequestMetrics::Spread& spread) {
  Json bounds = Json::array();
  for (const double bound : spread.bounds) {
    bounds.push_back(std::isfinite(bound) ? Json(bound) : Json());  // null: infinity
  }
  return {{"bounds", std::move(bounds)}, {"counts", spread.counts}};
}

}  // namespace

Json ClusterReport::For(const Caller& caller) const {
  const std::vector<WorkerPicture> pictures = args_.fleet.table().Pictures(kWorkersMost);
  const Names names = NamesOf(pictures);
  return {{"router", Router()},    {"requests", Requests()},
          {"roles", Roles()},      {"workers", Workers(pictures, names)},
          {"links", Links(names)}, {"prefixes", Prefixes(caller, pictures, names)}};
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
                     {"from", RoleOf(advice.from())},
                     {"to", RoleOf(advice.to())},
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

Json ClusterReport::Workers(const std::vector<WorkerPicture>& pictures, const Names& names) const {
  Json workers = Json::array();
  for (const WorkerPicture& picture : pictures) {
    const v1::WorkerState& state = picture.state;
    workers.push_back({{"name", NameOf(names, picture.endpoint)},
                       {"role", RoleOf(state.role())},
                       {"state", picture.doing},
                       {"life", fmt::format("{:x}", state.incarnation())},
                       {"running", state.running()},
                       {"waiting", state.waiting()},
                       {"waiting_tokens", state.waiting_tokens()},
                       {"booked", picture.booked},
                       {"transfers", state.handoffs()},
                       {"tokens", state.tokens()},
                       {"steps", state.steps()},
                       {"tiers", TiersJson(state)}});
  }
  return workers;
}

Json ClusterReport::Links(const Names& names) const {
  Json links = Json::array();
  for (const TransferBook::Link& link : args_.fleet.table().transfers().Latest(kLinksMost)) {
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

Json ClusterReport::Prefixes(const Caller& caller, const std::vector<WorkerPicture>& pictures,
                             const Names& names) const {
  std::map<uint32_t, std::string> by_index;
  for (const WorkerPicture& picture : pictures) {
    if (picture.index) by_index[*picture.index] = NameOf(names, picture.endpoint);
  }
  std::optional<std::string> tenant;
  if (args_.keys) tenant = caller.tenant == nullptr ? "" : caller.tenant->name();
  WorkerTable& table = args_.fleet.table();
  Json prefixes = Json::array();
  for (const HotPrefix& prefix :
       table.hot_prefixes().Hottest(tenant, kPrefixesMost, args_.clock.Now())) {
    Json where = Json::array();
    for (const auto& [worker, tier] : table.prefixes().HoldersOf(prefix.last, kHoldersMost)) {
      const auto name = by_index.find(worker);
      if (name == by_index.end()) continue;
      where.push_back({{"worker", name->second}, {"tier", TierName(tier)}});
    }
    prefixes.push_back({{"tokens", prefix.tokens},
                        {"hits", prefix.hits},
                        {"recent_hits", prefix.recent_hits},
                        {"where", std::move(where)}});
  }
  return prefixes;
}

}  // namespace penstock
