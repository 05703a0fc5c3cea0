#pragma once

#include <string>

#include "base/status.h"
#include "cli/operate/commands.h"
#include "kvstore/tiers/store_admin.h"
#include "proto/kv_admin.pb.h"

namespace penstock {

// Calls of `penstock kv` to a running worker, at its private endpoint. UNAVAILABLE when it does
// not answer; errors of Connect.
struct WorkerTarget {
  std::string endpoint;
  TlsOptions tls;
};
absl::StatusOr<v1::KvStats> AskKvStats(const WorkerTarget& worker);
absl::StatusOr<StoreReport> AskKvDirectory(const WorkerTarget& worker, bool verify);
absl::StatusOr<v1::KvFlushed> AskKvFlush(const WorkerTarget& worker);

// As a table, and as one JSON object.
std::string KvStatsText(const v1::KvStats& stats);
std::string JsonOf(const v1::KvStats& stats);

}  // namespace penstock
