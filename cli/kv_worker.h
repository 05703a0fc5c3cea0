#pragma once

#include <string>

#include "base/status.h"
#include "kvstore/store_admin.h"
#include "proto/kv_admin.pb.h"

namespace penstock {

// What `penstock kv` asks of a running worker, whose private endpoint is host:port. UNAVAILABLE
// when it does not answer.
absl::StatusOr<v1::KvStats> AskKvStats(const std::string& endpoint);
absl::StatusOr<StoreReport> AskKvDirectory(const std::string& endpoint, bool verify);
absl::StatusOr<v1::KvFlushed> AskKvFlush(const std::string& endpoint);

// As a table, and as one JSON object.
std::string TextOf(const v1::KvStats& stats);
std::string JsonOf(const v1::KvStats& stats);

}  // namespace penstock
