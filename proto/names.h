#pragma once

#include <string_view>

#include "proto/worker.pb.h"

// Names of the enums of proto/ for metrics, logs, the page, `penstock top`, `admin` and `kv`.
namespace penstock {

inline std::string_view RoleName(v1::WorkerState::Role role) {
  switch (role) {
    case v1::WorkerState::PREFILL:
      return "prefill";
    case v1::WorkerState::DECODE:
      return "decode";
    default:
      return "unknown";  // no state yet, or a newer enum value
  }
}

inline std::string_view PhaseName(v1::WorkerState::Phase phase) {
  switch (phase) {
    case v1::WorkerState::STARTING:
      return "starting";
    case v1::WorkerState::READY:
      return "ready";
    case v1::WorkerState::DRAINING:
      return "draining";
    case v1::WorkerState::UNHEALTHY:
      return "unhealthy";
    default:
      return "unknown";
  }
}

inline std::string_view TierName(v1::KvTier tier) {
  switch (tier) {
    case v1::DEVICE:
      return "device";
    case v1::DRAM:
      return "dram";
    case v1::NVME:
      return "nvme";
    default:
      return "unknown";
  }
}

}  // namespace penstock
