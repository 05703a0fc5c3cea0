#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "router/kubernetes/lease.h"

namespace penstock {

// The objects of the Kubernetes API that autoscaling reads and writes, as JSON. DATA_LOSS: the text
// is not such an object. Pure.

absl::StatusOr<LeaseRecord> ParseLease(const std::string& json);
std::string LeaseJson(const std::string& name, const LeaseRecord& lease);

// spec.replicas of a Scale (autoscaling/v1).
absl::StatusOr<uint32_t> ParseReplicas(const std::string& json);
std::string ReplicasPatch(uint32_t replicas);  // a merge patch

// A time of day as a MicroTime of the API: RFC 3339 in UTC.
std::string MicroTime(std::chrono::system_clock::time_point time);

}  // namespace penstock
