#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/rpc/process_info.h"
#include "base/tls/tls_files.h"
#include "kvstore/manager/kv_cache_manager.h"
#include "proto/worker.pb.h"
#include "worker/model/model_host.h"

namespace penstock {

// Everything that a WorkerRuntime is told. Names are those of v1::WorkerConfig.
struct WorkerRuntimeOptions {
  // Server.
  v1::WorkerState::Role first_role = v1::WorkerState::ROLE_UNSPECIFIED;
  std::string worker_id;                         // empty: the first role and the port
  std::string listen;                            // host:port of the private service
  std::string metrics_listen;                    // empty: no metrics
  Duration stall_max = std::chrono::seconds(5);  // without a beat the worker is unhealthy
  ProcessInfo process;
  TlsFiles cluster;  // no paths: callers and peers use no TLS

  // Model and cache.
  ModelHost::Options model;
  ModelHost::Options draft;  // the draft model; no `model`: there is none
  KvCacheManager::Options cache;

  // KV events for indexes outside the cluster.
  std::string kv_events_listen;  // empty: no KV events
  std::string kv_events_topic;   // empty: kv@WORKER@MODEL
  bool kv_events_as_maps = false;

  // Lower tiers.
  std::string dram_memory;  // "256MiB"; "0B": no DRAM tier
  std::string nvme_dir;     // empty: no NVMe tier
  std::string nvme_size;
  std::string nvme_io;
  std::string nvme_codec = "raw";
  uint32_t nvme_min_uses = 1;

  // Transfers.
  std::string wire;                   // lanes allowed
  std::string wire_listen;            // host that the wire binds
  bool wire_network_trusted = false;  // see HostWireOptions::network_trusted
  std::string wire_codec = "auto";    // "auto", or the name of a codec
  std::string lossy_kv;               // see LossyKv
  std::string kv_eviction;            // see KvEvictions
  std::string kv_selection;           // see KvSelections
  double kv_blend_deviation = 0;      // see KvBlends
  uint32_t chunk_tokens = 512;        // of a prompt in one step
  uint32_t max_batch = 64;            // sequences decoded in one step
  std::string nccl_library;
  Duration lease = std::chrono::seconds(3);
  size_t max_waiting = 256;  // decode sessions that wait for blocks
  uint32_t peer_reads = 8;   // prefixes that are sent to other workers at once
  // Called at the steps of handoffs, for fault injection. Empty functions: none.
  std::function<void(std::string_view step)> on_send_step;
  std::function<void(std::string_view step)> on_receive_step;
  std::function<void(std::string_view step)> on_peer_send_step;
};

}  // namespace penstock
