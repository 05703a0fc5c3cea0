#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lab/world/machine/network.h"
#include "lab/world/machine/scheduler.h"
#include "lab/world/router.h"
#include "lab/world/worker.h"
#include "tests/world/plan.h"

namespace penstock::world {

// The counts of a run, which show that it was not empty.
struct Totals {
  int64_t requests = 0;
  int64_t ok = 0;
  int64_t cancelled = 0;
  int64_t late = 0;    // their deadline has passed
  int64_t failed = 0;  // with any other status
  int64_t tokens = 0;
  int64_t prompt_tokens = 0;  // of answered requests
  int64_t cached_tokens = 0;  // of those
  Duration first_tokens{};    // sum of the times to the first token of requests that ended with OK
  int64_t migrations = 0;
  int64_t lossy = 0;  // accept lossy KV, and their answers differ from the exact ones
  int64_t wrong = 0;  // with an answer that is not the undisturbed one
  int64_t stuck = 0;  // never ended
  int64_t leaked_blocks = 0;
  int64_t worlds = 0;
  int64_t broken = 0;  // worlds that failed, for whatever reason
  int64_t events = 0;
  std::array<int64_t, static_cast<size_t>(FaultKind::kFaultKinds)> faults{};
  Counts counts{};

  void operator+=(const Totals& other);
};

struct Outcome {
  std::string failure;  // empty: no wrong token, no stuck request, no leaked block
  Totals totals;
  std::string refused;   // the requests that did not end with OK, and why; a line for each
  uint64_t history = 0;  // a hash of all answers and their times: equal runs have equal ones
};

// A cluster of routers and workers, which are the code under test, on a simulated machine: clock,
// threads, network, resolver, wire and model. It runs a plan. One for each process: the code under
// test that it abandons is never destroyed.
class World {
 public:
  explicit World(const Plan& plan);
  Outcome Run();

 private:
  class Injection;

  void AddWorker(v1::WorkerState::Role role);
  void Begin();
  void Arrive(size_t request);
  void Inject(const Fault& fault);
  void CheckIdle(const IdleBy& idle);
  bool AllFinished() const;
  bool AllIdle() const;
  // Empty when the cluster serves as before its faults; else what it does not do.
  std::string Recover();
  void RestoreRoles();
  std::string Unseen() const;  // the workers that the router does not see ready in their roles
  std::string Probe();
  std::string Problem() const;
  // The client whose prompt had more tokens cached than those of its tenant make possible.
  std::string Crossed() const;
  void CountFailures();
  std::string Refused() const;
  Outcome Result();
  void After(Duration delay, std::function<void()> event) {
    scheduler_.After(delay, nullptr, std::move(event));
  }

  const Plan plan_;
  Scheduler scheduler_;
  Network network_;
  std::vector<std::unique_ptr<SimWorker>> workers_;
  std::unique_ptr<SimRouter> router_;
  std::deque<SimClient> clients_;
  std::deque<SimClient> probes_;
  std::vector<bool> arrived_;
  std::string late_;  // the first worker or request that missed its time, and what it held
  Totals totals_;
  uint64_t history_ = 0;
};

}  // namespace penstock::world
