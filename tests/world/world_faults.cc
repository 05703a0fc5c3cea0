#include <algorithm>
#include <array>

#include "base/check.h"
#include "lab/world/machine/disk.h"
#include "lab/world/machine/listing.h"
#include "tests/world/world.h"

// World: the effect of each kind of fault.

namespace penstock::world {

// One fault, as it begins. Events that end it do not refer to this object.
class World::Injection {
 public:
  Injection(World& world, const Fault& fault)
      : world_(world),
        fault_(fault),
        worker_(*world.workers_[static_cast<size_t>(fault.a)]),
        process_(worker_.process()) {}

  void Run();

 private:
  struct Effect {
    FaultKind kind;
    void (Injection::*begin)();
  };
  static constexpr size_t kKinds = static_cast<size_t>(FaultKind::kFaultKinds);
  static const std::array<Effect, kKinds> kEffects;  // in the order of FaultKind

  void Crash();
  void CrashEmpty();
  void CrashTwin();
  void Pause();
  void Slow();
  void Partition();
  void PartitionOneWay();
  void Latency();
  void Slabs();
  void ClockJump();
  void Listing();
  void DiskFails();
  void DiskFull();
  void Drain();
  void Turn();
  void CrashRouter();
  void Poison();

  void Undo(std::function<void()> undo) { world_.After(fault_.lasts, std::move(undo)); }
  void RestartLater();
  // True unless the plan keeps a worker of each role and this one is the last.
  bool MayTakeAway() const;

  World& world_;
  const Fault& fault_;  // of the plan, which outlives every event
  SimWorker& worker_;
  Process* const process_;  // of the worker when the fault begins
};

const std::array<World::Injection::Effect, World::Injection::kKinds> World::Injection::kEffects = {{
    {FaultKind::kCrash, &Injection::Crash},
    {FaultKind::kCrashEmpty, &Injection::CrashEmpty},
    {FaultKind::kCrashTwin, &Injection::CrashTwin},
    {FaultKind::kPause, &Injection::Pause},
    {FaultKind::kSlow, &Injection::Slow},
    {FaultKind::kPartition, &Injection::Partition},
    {FaultKind::kPartitionOneWay, &Injection::PartitionOneWay},
    {FaultKind::kLatency, &Injection::Latency},
    {FaultKind::kSlabs, &Injection::Slabs},
    {FaultKind::kClockJump, &Injection::ClockJump},
    {FaultKind::kListing, &Injection::Listing},
    {FaultKind::kDiskFails, &Injection::DiskFails},
    {FaultKind::kDiskFull, &Injection::DiskFull},
    {FaultKind::kDrain, &Injection::Drain},
    {FaultKind::kTurn, &Injection::Turn},
    {FaultKind::kRouterCrash, &Injection::CrashRouter},
    {FaultKind::kPoison, &Injection::Poison},
}};

void World::Inject(const Fault& fault) {
  ++totals_.faults[static_cast<size_t>(fault.kind)];
  Injection(*this, fault).Run();
}

void World::Injection::Run() {
  const Effect& effect = kEffects.at(static_cast<size_t>(fault_.kind));
  PENSTOCK_CHECK(effect.kind == fault_.kind, "kEffects is not in the order of FaultKind");
  (this->*effect.begin)();
}

void World::Injection::RestartLater() {
  Undo([&worker = worker_] {
    if (!worker.up()) worker.Start();
  });
}

void World::Injection::Crash() {
  worker_.Crash();
  RestartLater();
}

void World::Injection::CrashEmpty() {
  worker_.Crash();
  worker_.LoseDisk();
  RestartLater();
}

void World::Injection::CrashTwin() {
  worker_.Crash();
  worker_.SetModel("model-b");
  world_.After(2 * fault_.lasts, [&worker = worker_] {
    worker.Crash();
    worker.SetModel("model-a");
    worker.Start();
  });
  RestartLater();
}

void World::Injection::Pause() {
  // An earlier stop may last longer.
  process_->paused_until = std::max(process_->paused_until, world_.scheduler_.now() + fault_.lasts);
  if (fault_.lasts <= kKeepalive) return;
  world_.After(kKeepalive, [&network = world_.network_, process = process_] {
    if (process->alive) network.OnSilence(process);
  });
}

void World::Injection::Slow() {
  process_->slowness = static_cast<double>(fault_.amount);
  Undo([process = process_] { process->slowness = 1; });
}

void World::Injection::Partition() {
  world_.network_.Block(fault_.a, fault_.b);
  world_.network_.Block(fault_.b, fault_.a);
  Undo([&network = world_.network_, &fault = fault_] {
    network.Unblock(fault.a, fault.b);
    network.Unblock(fault.b, fault.a);
  });
}

void World::Injection::PartitionOneWay() {
  world_.network_.Block(fault_.a, fault_.b);
  Undo([&network = world_.network_, &fault = fault_] { network.Unblock(fault.a, fault.b); });
}

void World::Injection::Latency() {
  NetworkFaults& faults = world_.network_.faults();
  faults.delay_max = std::chrono::milliseconds(fault_.amount);
  faults.spike = 10;
  Undo([&faults] {
    const NetworkFaults calm;
    faults.delay_max = calm.delay_max;
    faults.spike = calm.spike;
  });
}

void World::Injection::Slabs() {
  NetworkFaults& faults = world_.network_.faults();
  faults.slab_lost = 50;
  faults.slab_damaged = 50;
  faults.slab_repeated = 50;
  faults.end_lost = 30;
  faults.put_refused = 50;
  faults.slab_stuck = 10;
  Undo([&faults] { faults = {.delay_max = faults.delay_max, .spike = faults.spike}; });
}

void World::Injection::ClockJump() {
  const bool is_router = fault_.b == static_cast<int>(world_.workers_.size());
  Process* const jumps = is_router ? world_.router_->process() : process_;
  jumps->wall_clock_jump += std::chrono::milliseconds(fault_.amount);
}

void World::Injection::Listing() {
  if (fault_.amount % 4 == 0) {
    TheListing().fails = true;
    return Undo([] { TheListing().fails = false; });
  }
  const std::string& endpoint = worker_.place().endpoint;
  const std::string host = endpoint.substr(0, endpoint.find(':'));
  TheListing().hosts.erase(host);
  Undo([host] { TheListing().hosts.insert(host); });
}

void World::Injection::DiskFails() {
  (fault_.amount % 2 == 0 ? DiskOf(fault_.a).fails : DiskOf(fault_.a).rots) = true;
  Undo([&fault = fault_] {
    DiskOf(fault.a).fails = false;
    DiskOf(fault.a).rots = false;
  });
}

void World::Injection::DiskFull() {
  DiskOf(fault_.a).full = true;
  Undo([&fault = fault_] { DiskOf(fault.a).full = false; });
}

void World::Injection::Drain() {
  if (!MayTakeAway()) return;
  worker_.SetDraining(true);
  Undo([&worker = worker_, process = process_] {
    if (worker.process() == process) worker.SetDraining(false);
  });
}

void World::Injection::Turn() {
  if (MayTakeAway()) worker_.Turn();
}

bool World::Injection::MayTakeAway() const {
  return worker_.serving() &&
         (!world_.plan_.planned || world_.router_->CanSpare(worker_.place().endpoint));
}

void World::Injection::CrashRouter() {
  SimRouter& router = *world_.router_;
  if (!router.process()->alive) return;
  router.Crash();
  for (size_t i = 0; i < world_.clients_.size(); ++i) {
    if (world_.arrived_[i]) world_.clients_[i].OnRouterDeath();
  }
  Undo([&router] { router.Start(); });
}

void World::Injection::Poison() { worker_.Poison(); }

}  // namespace penstock::world
