#include "router/kubernetes/kube_objects.h"

#include <fmt/chrono.h>

#include <nlohmann/json.hpp>

namespace penstock {
namespace {

using Json = nlohmann::json;

constexpr uint32_t kReplicasMax = 1'000'000;
constexpr uint32_t kDurationMax_s = 86'400;

absl::Status NoObject(const char* kind) {
  return DataLoss("the API server's answer is no {}", kind);
}

// The member of an object; a null value for none.
const Json& Member(const Json& object, const char* name) {
  static const Json kNull;
  if (!object.is_object()) return kNull;
  const auto found = object.find(name);
  return found == object.end() ? kNull : *found;
}

std::string TextOf(const Json& object, const char* name) {
  const Json& member = Member(object, name);
  return member.is_string() ? member.get<std::string>() : "";
}

// 0 where the member is missing, as the API leaves out zeros.
std::optional<uint32_t> CountOf(const Json& object, const char* name, uint32_t max) {
  const Json& member = Member(object, name);
  if (member.is_null()) return 0;
  if (!member.is_number_unsigned() || member.get<uint64_t>() > max) return std::nullopt;
  return member.get<uint32_t>();
}

}  // namespace

absl::StatusOr<LeaseRecord> ParseLease(const std::string& json) {
  const Json lease = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  const Json& spec = Member(lease, "spec");
  LeaseRecord record{.holder = TextOf(spec, "holderIdentity"),
                     .acquired = TextOf(spec, "acquireTime"),
                     .renewed = TextOf(spec, "renewTime"),
                     .version = TextOf(Member(lease, "metadata"), "resourceVersion")};
  const auto duration = CountOf(spec, "leaseDurationSeconds", kDurationMax_s);
  const auto transitions = CountOf(spec, "leaseTransitions", UINT32_MAX);
  if (record.version.empty() || !duration || !transitions) return NoObject("Lease");
  record.duration_s = *duration;
  record.transitions = *transitions;
  return record;
}

std::string LeaseJson(const std::string& name, const LeaseRecord& lease) {
  Json json = {{"apiVersion", "coordination.k8s.io/v1"},
               {"kind", "Lease"},
               {"metadata", {{"name", name}}},
               {"spec",
                {{"holderIdentity", lease.holder},
                 {"leaseDurationSeconds", lease.duration_s},
                 {"leaseTransitions", lease.transitions},
                 {"acquireTime", lease.acquired},
                 {"renewTime", lease.renewed}}}};
  if (!lease.version.empty()) json["metadata"]["resourceVersion"] = lease.version;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<uint32_t> ParseReplicas(const std::string& json) {
  const Json scale = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  const Json& spec = Member(scale, "spec");
  const std::optional<uint32_t> replicas = CountOf(spec, "replicas", kReplicasMax);
  if (!spec.is_object() || !replicas) return NoObject("Scale");
  return *replicas;
}

std::string ReplicasPatch(uint32_t replicas) {
  return Json{{"spec", {{"replicas", replicas}}}}.dump();
}

std::string MicroTime(std::chrono::system_clock::time_point time) {
  const auto whole = std::chrono::time_point_cast<std::chrono::seconds>(time);
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(time - whole);
  return fmt::format("{:%Y-%m-%dT%H:%M:%S}.{:06}Z", fmt::gmtime(whole), micros.count());
}

}  // namespace penstock
