#pragma once

#include <map>
#include <set>
#include <string>

namespace penstock {

// A room is a folder with source files. The rooms that each room may include, beside itself.
using Rooms = std::map<std::string, std::set<std::string>>;

// docs/ARCHITECTURE.md draws it. An arrow that no file uses is removed.
const Rooms kRooms = {
    // What every room may use.
    {"base", {}},
    {"proto", {}},
    {"base/config", {"base"}},
    {"base/log", {"base"}},
    {"base/metrics", {"base", "base/log"}},
    {"base/tls", {"base", "base/log", "base/metrics"}},
    {"base/rpc", {"base", "base/log", "base/tls"}},
    // Pure functions over views.
    {"kernels", {"base"}},
    {"kernels/cpu", {"base", "kernels"}},
    {"kernels/cuda", {"base", "kernels"}},
    {"kernels/cuda/device", {"kernels", "kernels/cpu", "kernels/cuda"}},
    // The model.
    {"model/checkpoint", {"base"}},
    {"model/sampler", {"base"}},
    {"model/tokenizer", {"base"}},
    {"model/template", {"base", "model/tokenizer"}},
    {"model/forward",
     {"base", "kernels", "kernels/cpu", "kernels/cuda", "model/checkpoint", "model/sampler"}},
    {"model/cuda",
     {"base", "base/log", "kernels", "kernels/cuda", "model/forward", "model/sampler"}},
    // Where KV lives and how it moves.
    {"kvstore/names", {"base"}},
    {"kvstore/cache", {"base", "kernels", "kvstore/names"}},
    {"kvstore/wire", {"base", "kernels", "kvstore/names"}},
    {"kvstore/codec", {"base", "kernels", "kernels/cpu", "kernels/cuda"}},
    {"kvstore/tiers/disk", {"base", "base/log", "kvstore/cache", "kvstore/names"}},
    {"kvstore/wire/nccl", {"base", "base/log", "kernels", "kvstore/wire"}},
    {"kvstore/handoff",
     {"base", "base/log", "kernels", "kvstore/cache", "kvstore/codec", "kvstore/wire", "proto"}},
    {"kvstore/tiers/nvme",
     {"base", "base/log", "kernels", "kvstore/cache", "kvstore/codec", "kvstore/tiers/disk"}},
    {"kvstore/wire/ucx", {"base", "base/log", "kernels", "kvstore/wire", "kvstore/wire/nccl"}},
    {"kvstore/tiers",
     {"base", "base/log", "kernels", "kvstore/codec", "kvstore/tiers/disk", "kvstore/tiers/nvme"}},
    {"kvstore/manager", {"base", "kvstore/cache", "kvstore/names", "kvstore/tiers", "proto"}},
    // Workers.
    {"worker/engine",
     {"base", "base/metrics", "kernels", "kernels/cpu", "kernels/cuda", "kvstore/cache",
      "kvstore/codec", "kvstore/handoff", "kvstore/manager", "kvstore/names", "kvstore/wire/nccl",
      "model/cuda", "model/forward", "model/sampler", "proto"}},
    {"worker/handoff",
     {"base", "base/log", "base/metrics", "base/rpc", "kernels", "kvstore/codec", "kvstore/handoff",
      "kvstore/manager", "kvstore/names", "proto"}},
    {"worker/runtime",
     {"base", "base/log", "base/metrics", "base/rpc", "base/tls", "kvstore/cache", "kvstore/codec",
      "kvstore/handoff", "kvstore/manager", "kvstore/tiers", "kvstore/tiers/disk", "kvstore/wire",
      "kvstore/wire/ucx", "proto", "worker/engine", "worker/handoff"}},
    {"decode_worker",
     {"base", "base/log", "base/rpc", "kernels", "kvstore/cache", "kvstore/handoff",
      "kvstore/manager", "kvstore/names", "kvstore/tiers", "model/forward", "model/sampler",
      "proto", "worker/engine", "worker/handoff", "worker/runtime"}},
    {"prefill_worker",
     {"base", "base/log", "base/rpc", "kvstore/cache", "kvstore/handoff", "kvstore/manager",
      "kvstore/names", "model/forward", "model/sampler", "proto", "worker/engine", "worker/handoff",
      "worker/runtime"}},
    {"worker/main",
     {"base", "base/config", "base/log", "base/tls", "decode_worker", "prefill_worker", "proto",
      "worker/runtime"}},
    // Public ports.
    {"http", {"base", "base/log", "base/metrics", "base/tls"}},
    {"http/http1", {"http"}},
    {"http/http2", {"base", "http"}},
    {"http/server", {"base", "base/log", "http", "http/http1", "http/http2"}},
    // The router.
    {"router/index", {"base", "kvstore/names"}},
    {"router/request",
     {"base", "base/log", "base/metrics", "kvstore/names", "model/checkpoint", "model/template",
      "model/tokenizer", "proto"}},
    {"router/metrics", {"base", "base/metrics", "proto", "router/request"}},
    {"router/placement",
     {"base", "base/metrics", "kvstore/names", "proto", "router/index", "router/request"}},
    {"router/admission", {"base", "proto", "router/metrics", "router/request"}},
    {"router/fleet",
     {"base", "base/log", "base/metrics", "base/rpc", "base/tls", "proto", "router/admission",
      "router/placement"}},
    {"router/session",
     {"base", "base/log", "base/rpc", "kvstore/names", "model/tokenizer", "proto",
      "router/admission", "router/fleet", "router/metrics", "router/placement", "router/request"}},
    {"router/inference",
     {"base/log", "router/admission", "router/fleet", "router/request", "router/session"}},
    {"router/grpc",
     {"base", "base/rpc", "http", "proto", "router/admission", "router/inference",
      "router/request"}},
    {"router/openai",
     {"base", "base/log", "base/rpc", "http", "proto", "router/admission", "router/inference",
      "router/request", "router/session"}},
    {"router/page",
     {"base", "http", "proto", "router/admission", "router/fleet", "router/metrics",
      "router/openai", "router/request"}},
    {"router",
     {"base", "base/config", "base/log", "base/metrics", "base/rpc", "base/tls", "http/server",
      "proto", "router/fleet", "router/grpc", "router/metrics", "router/openai", "router/page"}},
    // The command line.
    {"cli",
     {"base", "base/config", "base/log", "base/rpc", "kvstore/tiers", "lab/eval", "lab/load",
      "lab/micro", "lab/plan", "lab/replay", "lab/report", "lab/router", "lab/simulate", "proto"}},
    // The laboratory: no product room includes it.
    {"lab/plan", {"base", "kernels", "model/checkpoint"}},
    {"lab/report", {"kernels/cpu"}},
    {"lab/eval",
     {"base", "kernels", "kernels/cpu", "kvstore/codec", "model/forward", "model/tokenizer"}},
    {"lab/load", {"base", "http", "proto"}},
    {"lab/simulate", {"base", "kvstore/names", "router/index", "router/placement"}},
    {"lab/micro",
     {"base", "base/log", "kernels", "kernels/cpu", "kvstore/cache", "kvstore/codec",
      "kvstore/tiers", "kvstore/tiers/nvme", "kvstore/wire/ucx", "lab/eval", "lab/report",
      "model/forward", "router/index"}},
    {"lab/replay", {"base", "kvstore/cache", "kvstore/names", "kvstore/tiers", "lab/report"}},
    {"lab/fake",
     {"base", "decode_worker", "kvstore/names", "proto", "router/request", "router/session"}},
    {"lab/router", {"base", "lab/fake", "lab/report", "proto", "router"}},
};

}  // namespace penstock
