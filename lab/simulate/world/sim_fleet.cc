#include "lab/simulate/world/sim_fleet.h"

#include <fmt/format.h>

#include <algorithm>

#include "lab/world/machine/listing.h"

namespace penstock {
namespace {

using world::kListedPort;

constexpr v1::WorkerState::Role kPrefill = v1::WorkerState::PREFILL;
constexpr v1::WorkerState::Role kDecode = v1::WorkerState::DECODE;

std::string HostOf(size_t number) {
  return fmt::format("10.{}.{}.{}", number / 62'500, number / 250 % 250, number % 250 + 1);
}

}  // namespace

void SimFleet::Begin(const ReplicaCounts& counts) {
  wanted_ = counts;
  begun_ = counts.prefill + counts.decode;
  for (size_t i = 0; i < begun_; ++i) {
    Add(i < counts.prefill ? kPrefill : kDecode);
    Start(i);
  }
}

void SimFleet::Want(const ReplicaCounts& counts) {
  Resize(kPrefill, wanted_.prefill, counts.prefill);
  Resize(kDecode, wanted_.decode, counts.decode);
  wanted_ = counts;
}

void SimFleet::Resize(v1::WorkerState::Role role, uint32_t from, uint32_t to) {
  if (from == to) return;
  ++changes_;
  int& direction = directions_[role == kPrefill ? 0 : 1];
  const int now = to > from ? 1 : -1;
  turns_ += direction != 0 && direction != now ? 1 : 0;
  direction = now;
  for (uint32_t i = from; i < to; ++i) {
    Add(role);
    scheduler_.After(SecondsOf(scaling_.start_up_s), nullptr,
                     [this, number = replicas_.size() - 1] { Start(number); });
  }
  for (uint32_t i = to; i < from; ++i) {
    const auto newest = std::find_if(
        replicas_.rbegin(), replicas_.rend(),
        [&](const Replica& replica) { return replica.role == role && !replica.removed; });
    if (newest != replicas_.rend()) Remove(*newest);
  }
}

SimFleet::Replica& SimFleet::Add(v1::WorkerState::Role role) {
  const size_t number = replicas_.size();
  world::WorkerPlace place{.first_role = role,
                           .endpoint = fmt::format("{}:{}", HostOf(number), kListedPort),
                           .host = static_cast<int>(number),
                           .model = "timed",
                           .disk = "",
                           .config = [this, role](int) { return config_(role); }};
  replicas_.push_back({.worker = std::make_unique<world::SimWorker>(std::move(place)),
                       .role = role,
                       .from = scheduler_.now()});
  return replicas_.back();
}

void SimFleet::Start(size_t number) {
  Replica& replica = replicas_[number];
  if (replica.removed) return;
  replica.worker->Start();
  world::TheListing().hosts.insert(HostOf(number));
}

void SimFleet::Remove(Replica& replica) {
  replica.removed = scheduler_.now();
  if (!replica.worker->serving()) return End(replica);
  replica.worker->SetDraining(true);
  WatchDrain(static_cast<size_t>(replica.worker->place().host));
}

void SimFleet::WatchDrain(size_t number) {
  scheduler_.After(std::chrono::seconds(1), nullptr, [this, number] {
    Replica& replica = replicas_[number];
    const bool late = scheduler_.now() - *replica.removed >= SecondsOf(scaling_.drain_s);
    if (!late && !replica.worker->idle()) return WatchDrain(number);
    End(replica);
  });
}

void SimFleet::End(Replica& replica) {
  const auto number = static_cast<size_t>(replica.worker->place().host);
  replica.counted = replica.worker->Counted("penstock_kv_peer_bytes_total");
  replica.worker->Crash();
  world::TheListing().hosts.erase(HostOf(number));
  replica.until = scheduler_.now();
}

v1::WorkerState::Role SimFleet::RoleOf(int host) const {
  return replicas_[static_cast<size_t>(host)].role;
}

void SimFleet::Describe(SimResult& result) const {
  for (const Replica& replica : replicas_) {
    const Duration time = replica.until.value_or(scheduler_.now()) - replica.from;
    (replica.role == kPrefill ? result.prefill_worker_hours : result.decode_worker_hours) +=
        Milliseconds(time) / 3'600'000;
  }
  result.scale_changes = changes_;
  result.scale_turns = turns_;
}

double SimFleet::PeerBytes() const {
  double sum = 0;
  for (const Replica& replica : replicas_) {
    sum +=
        replica.until ? replica.counted : replica.worker->Counted("penstock_kv_peer_bytes_total");
  }
  return sum;
}

}  // namespace penstock
