#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "lab/world/machine/network.h"

namespace penstock::world {

// One client's request, and what the client does besides.
struct RequestPlan {
  Duration at{};
  std::vector<uint32_t> prompt;
  uint32_t choices = 1;
  uint32_t max_tokens = 1;
  uint32_t min_tokens = 0;
  float temperature = 0;
  float top_p = 1;
  float frequency_penalty = 0;
  float repetition_penalty = 1;
  uint64_t seed = 0;
  std::vector<std::string> stops;
  bool include_stop = false;
  int32_t top_logprobs = -1;  // -1: no logprobs
  int32_t priority = 0;
  std::string salt;       // partition of the prefix cache
  std::string kv_policy;  // the loss of precision that it accepts; empty: none
  Duration deadline{};    // from its arrival; 0: none
  Duration cancelled{};   // the client leaves this long after its arrival; 0: never
  // The request has ended this long after its arrival, with an answer or an error; 0: unlimited.
  Duration ends_within{};
};

enum class FaultKind {
  kCrash,            // of worker `a`; restarted after `lasts`, with its disk
  kCrashEmpty,       // the same, without its disk
  kCrashTwin,        // the same, with another model for a time
  kPause,            // as by SIGSTOP, for `lasts`
  kSlow,             // worker `a` computes and sends `amount` times as slowly, for `lasts`
  kPartition,        // hosts `a` and `b`, for `lasts`
  kPartitionOneWay,  // from host `a` to `b`
  kLatency,          // every message is up to `amount` ms late, for `lasts`
  kSlabs,            // slabs are lost, damaged, repeated or stuck, for `lasts`
  kClockJump,        // of host `a`'s time of day, by `amount` ms
  kListing,          // worker `a` is missing in the fleet's listing, for `lasts`
  kDiskFails,        // worker `a`'s disk returns errors or wrong bits, for `lasts`
  kDiskFull,         // worker `a`'s disk is full, for `lasts`
  kDrain,            // worker `a` drains, for `lasts`: its sequences move
  kTurn,             // worker `a` changes its role
  kRouterCrash,      // of the router; another one starts after `lasts`
  kPoison,           // worker `a`'s pages change: not drawn, for tests of the world itself
  kFaultKinds
};
const char* FaultName(FaultKind kind);

struct Fault {
  FaultKind kind = FaultKind::kCrash;
  Duration at{};
  Duration lasts{};
  int a = 0;
  int b = 0;
  int64_t amount = 0;
};

// By then the worker holds nothing for any request: no block, no handoff, no slab.
struct IdleBy {
  Duration at{};
  int worker = 0;
};

// Everything that happens to a world from outside: it follows from the seed alone, and a part of it
// is a plan, too.
struct Plan {
  uint64_t seed = 0;  // of delays, schedules and the entropy of processes
  int prefill_workers = 2;
  int decode_workers = 2;
  int pages = 72;  // of a worker: fewer than the conversations need, so that blocks are evicted
  int slots = 48;  // of its host memory
  std::vector<RequestPlan> requests;
  std::vector<Fault> faults;
  // One router, one model, and drains and role changes that leave another worker of the role: no
  // request fails.
  bool planned = false;
  NetworkFaults network = {};  // when no fault changes it
  // Pages are written as slowly as a GPU's that is busy, so that handoffs end meanwhile.
  bool slow_pages = false;
  std::vector<IdleBy> idle_by = {};
  // Requests after the last fault has ended. Every one must succeed.
  std::vector<RequestPlan> probes;
};

struct PlanOptions {
  int requests = 100;
  int faults = 8;
  std::vector<FaultKind> kinds = {};  // that are drawn; empty: all but kPoison
  // False: no request has a deadline or leaves, arrivals are never faster than the workers, and
  // drains and role changes are planned.
  bool hurried = true;
};
Plan MakePlan(uint64_t seed, const PlanOptions& options);
std::string Describe(const Fault& fault);
std::string Describe(const RequestPlan& request);

}  // namespace penstock::world
