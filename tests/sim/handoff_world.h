#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kvstore/cache/block_pool.h"
#include "tests/sim/sim_network.h"
#include "tests/sim/simulation.h"

namespace penstock::sim {

// The faults that a world may give to its workers.
enum class Weather {
  kCalm,     // delays only: every request is served
  kLossy,    // slabs are lost, repeated, refused: every request is served all the same
  kHostile,  // and damaged; processes die or stop, hosts are cut off, clients go away
};

// Counts of a run, which show that it was not empty.
struct WorldTotals {
  int64_t attempts = 0;
  int64_t committed = 0;  // seen by the decode worker
  int64_t failed = 0;
  int64_t cancelled = 0;
  int64_t crashes = 0;
  int64_t partitions = 0;
  int64_t waited = 0;  // decode sessions that were not admitted at once

  void operator+=(const WorldTotals& other);
};

// Prefill and decode workers with the real KvSender, KvReceiver and BlockPool, on a simulated
// network and clock, under a router that places, cancels and plans again. The KV of a block is a
// hash of its attempt, place, layer and number of tokens, so a stale, torn, swapped or early block
// is seen when it is committed, and again when it is freed.
class HandoffWorld {
 public:
  explicit HandoffWorld(uint64_t seed);
  ~HandoffWorld();

  // Runs to the end. False after a violation; Report says which.
  bool Run();
  std::string Report() const { return simulation_.Report(); }
  uint64_t history_hash() const { return simulation_.history_hash(); }
  const WorldTotals& totals() const { return totals_; }

 private:
  enum class Side { kNone, kOpen, kOk, kFailed };  // what a worker has told the router

  // One plan of one request.
  struct Attempt {
    HandoffKey key;
    int request = 0;
    uint32_t tokens = 0;
    int64_t blocks = 0;  // to set aside at the decode worker
    ProcessRef prefill;
    ProcessRef decode;
    std::shared_ptr<SimStream> stream;
    Side sender = Side::kNone;
    Side receiver = Side::kNone;
    bool admitted = false;
    bool cancelled = false;  // by the router: what has not arrived will not
    bool settled = false;    // the router is done with it
    TimePoint cancelled_at{};
    // The prefill engine's.
    std::vector<BlockRef> pages;
    uint32_t computed = 0;  // tokens
    // The decode engine's, after commit.
    ReceivedKv received;
  };
  struct Request {
    uint32_t tokens = 0;
    int plans = 0;
    bool ended = false;
    bool wanted = true;  // not cancelled, not past its deadline
    std::vector<size_t> attempts;
  };
  struct Worker {
    int host = 0;
    int incarnation = 0;
    std::unique_ptr<BlockPool> pool;
    std::unique_ptr<KvReceiver> receiver;
    std::unique_ptr<Wire> wire;
    std::unique_ptr<KvSender> sender;
    ProcessRef process;
    // Writes of slabs into pages that have begun: finished at once when the process dies.
    std::map<uint64_t, std::function<void()>> writes;
  };

  bool hostile() const { return weather_ == Weather::kHostile; }
  bool Served() const;
  // Faults and load, all at random times.
  void PlanLoad();
  void PlanFaults();
  void CrashSomeone();
  void PartitionSomeone();
  void PauseSomeone();

  Worker& AddWorker(std::vector<std::unique_ptr<Worker>>* workers, int host);
  void StartPrefill(Worker& worker);
  void StartDecode(Worker& worker);
  void Crash(Worker& worker, bool prefill);
  SlabWriter SlowWriter(Worker& worker);

  // The router.
  void Arrive(int request);
  void Plan(int request);
  void Cancel(int request);
  void CancelAttempt(size_t attempt);
  void Heard(size_t attempt, const absl::Status& status, bool from_decode);

  // The workers, as engines use the sender and the receiver.
  void BeginDecode(size_t attempt);
  void BeginPrefill(size_t attempt);
  void Compute(size_t attempt);
  void ComputeLayers(size_t attempt, uint32_t last_token, int32_t layer);
  void OnCommitted(size_t attempt, ReceivedKv kv);
  void FinishDecode(size_t attempt);
  void EndWhenBothAreDone(const Attempt& attempt);
  // After a random time, once the process runs; dropped when it is dead.
  void At(const ProcessRef& process, Duration delay, std::function<void()> event);

  // Content.
  uint64_t Word(const Attempt& attempt, uint32_t block, int32_t layer, uint32_t valid) const;
  void Fill(const PagedKv& kv, const Attempt& attempt, uint32_t block, int32_t layer,
            uint32_t last_token);
  void CheckContent(const Attempt& attempt, std::string_view when);

  // Invariants.
  void CheckAll();
  void CheckPrefill(const Worker& worker);
  void CheckDecode(const Worker& worker);
  void CheckBounds();
  void CheckEmpty();
  void PollAll();
  void Tick();

  Simulation simulation_;
  const Weather weather_;
  const Duration compute_most_;      // of a group of layers
  const Duration router_slow_most_;  // until it cancels what is left of a failed attempt
  NetworkFaults faults_;
  SimNetwork network_;
  WorldTotals totals_;
  std::vector<std::unique_ptr<Worker>> prefills_;
  std::vector<std::unique_ptr<Worker>> decodes_;
  std::vector<Request> requests_;
  std::vector<std::unique_ptr<Attempt>> attempts_;
  uint64_t next_write_ = 0;
};

}  // namespace penstock::sim
