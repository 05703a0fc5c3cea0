#include "tests/world/machine/disk.h"
#include "tests/world/machine/listing.h"
#include "tests/world/world.h"

// World: what each kind of fault does.

namespace penstock::world {

void World::Undo(Duration after, std::function<void()> undo) { After(after, std::move(undo)); }

void World::Restart(SimWorker& worker, Duration after) {
  Undo(after, [&worker] {
    if (!worker.up()) worker.Start();
  });
}

bool World::MayTakeAway(const SimWorker& worker) const {
  return worker.serving() && (!plan_.planned || router_->CanSpare(worker.place().endpoint));
}

void World::CrashRouter(Duration lasts) {
  if (!router_->process()->alive) return;
  router_->Crash();
  for (size_t i = 0; i < clients_.size(); ++i) {
    if (arrived_[i]) clients_[i].OnRouterDeath();
  }
  Undo(lasts, [this] { router_->Start(); });
}

void World::CountFault(const Fault& fault) { ++totals_.faults[static_cast<size_t>(fault.kind)]; }

void World::Inject(const Fault& fault) {
  CountFault(fault);
  SimWorker& worker = *workers_[static_cast<size_t>(fault.a)];
  Process* const process = worker.process();
  const std::string host = worker.place().endpoint.substr(0, worker.place().endpoint.find(':'));
  const NetworkFaults calm;
  switch (fault.kind) {
    case FaultKind::kCrash:
      worker.Crash();
      return Restart(worker, fault.lasts);
    case FaultKind::kCrashEmpty:
      worker.Crash();
      worker.LoseDisk();
      return Restart(worker, fault.lasts);
    case FaultKind::kCrashTwin:
      worker.Crash();
      worker.SetModel("model-b");
      Undo(2 * fault.lasts, [&worker] {
        worker.Crash();
        worker.SetModel("model-a");
        worker.Start();
      });
      return Restart(worker, fault.lasts);
    case FaultKind::kPause:
      process->paused_until = scheduler_.now() + fault.lasts;
      if (fault.lasts > kKeepalive) {
        Undo(kKeepalive, [this, process] {
          if (process->alive) network_.OnSilence(process);
        });
      }
      return;
    case FaultKind::kSlow:
      process->slowness = static_cast<double>(fault.amount);
      return Undo(fault.lasts, [process] { process->slowness = 1; });
    case FaultKind::kPartition:
      network_.Block(fault.a, fault.b);
      network_.Block(fault.b, fault.a);
      return Undo(fault.lasts, [this, &fault] {
        network_.Unblock(fault.a, fault.b);
        network_.Unblock(fault.b, fault.a);
      });
    case FaultKind::kPartitionOneWay:
      network_.Block(fault.a, fault.b);
      return Undo(fault.lasts, [this, &fault] { network_.Unblock(fault.a, fault.b); });
    case FaultKind::kLatency:
      network_.faults().delay_max = std::chrono::milliseconds(fault.amount);
      network_.faults().spike = 10;
      return Undo(fault.lasts, [this, calm] {
        network_.faults().delay_max = calm.delay_max;
        network_.faults().spike = calm.spike;
      });
    case FaultKind::kSlabs:
      network_.faults().slab_lost = 50;
      network_.faults().slab_damaged = 50;
      network_.faults().slab_repeated = 50;
      network_.faults().end_lost = 30;
      network_.faults().put_refused = 50;
      network_.faults().slab_stuck = 10;
      return Undo(fault.lasts, [this, calm] {
        const Duration delay = network_.faults().delay_max;
        const uint64_t spike = network_.faults().spike;
        network_.faults() = calm;
        network_.faults().delay_max = delay;
        network_.faults().spike = spike;
      });
    case FaultKind::kClockJump: {
      Process* const jumps =
          fault.b == static_cast<int>(workers_.size()) ? router_->process() : process;
      jumps->wall_clock_jump += std::chrono::milliseconds(fault.amount);
      return;
    }
    case FaultKind::kListing:
      if (fault.amount % 4 == 0) {
        TheListing().fails = true;
        return Undo(fault.lasts, [] { TheListing().fails = false; });
      }
      TheListing().hosts.erase(host);
      return Undo(fault.lasts, [host] { TheListing().hosts.insert(host); });
    case FaultKind::kDiskFails:
      (fault.amount % 2 == 0 ? DiskOf(fault.a).fails : DiskOf(fault.a).rots) = true;
      return Undo(fault.lasts, [&fault] {
        DiskOf(fault.a).fails = false;
        DiskOf(fault.a).rots = false;
      });
    case FaultKind::kDiskFull:
      DiskOf(fault.a).full = true;
      return Undo(fault.lasts, [&fault] { DiskOf(fault.a).full = false; });
    case FaultKind::kDrain:
      if (!MayTakeAway(worker)) return;
      worker.SetDraining(true);
      return Undo(fault.lasts, [&worker, process] {
        if (worker.process() == process) worker.SetDraining(false);
      });
    case FaultKind::kTurn:
      if (MayTakeAway(worker)) worker.Turn();
      return;
    case FaultKind::kRouterCrash:
      return CrashRouter(fault.lasts);
    case FaultKind::kPoison:
      return worker.Poison();
    case FaultKind::kFaultKinds:
      return;
  }
}

}  // namespace penstock::world
