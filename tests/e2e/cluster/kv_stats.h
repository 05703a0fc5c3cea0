#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>

#include "proto/kv_admin.grpc.pb.h"
#include "tests/e2e/cluster/cluster.h"

namespace penstock {

// The worker's answer to KvAdmin.Stats.
inline v1::KvStats StatsOf(const WorkerProcess& worker) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  const auto channel = grpc::CreateChannel(worker.endpoint, grpc::InsecureChannelCredentials());
  v1::KvStats stats;
  const grpc::Status status = v1::KvAdmin::NewStub(channel)->Stats(&context, {}, &stats);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return stats;
}

// True once the worker has found what its NVMe directory has of an earlier life: it serves before.
inline bool HasFoundNvme(const WorkerProcess& worker) {
  return StatsOf(worker).nvme().rebuild_s() > 0;
}

inline v1::KvTierStats TierOf(const WorkerProcess& worker, v1::KvTier tier) {
  const v1::KvStats all = StatsOf(worker);
  for (const v1::KvTierStats& stats : all.tiers()) {
    if (stats.tier() == tier) return stats;
  }
  return {};
}

}  // namespace penstock
