#pragma once

#include <array>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lab/world/machine/network.h"
#include "lab/world/machine/process.h"
#include "proto/config.pb.h"
#include "worker/runtime/worker_runtime.h"

namespace penstock::world {

// The metrics that show what a run has reached.
inline constexpr const char* kCounted[] = {
    "penstock_kv_transfers_total",        "penstock_kv_restores_total",
    "penstock_kv_swaps_out_total",        "penstock_kv_peer_reads_total",
    "penstock_kv_spills_total",           "penstock_kv_nvme_corrupt_total",
    "penstock_kv_nvme_torn_total",        "penstock_kv_nvme_write_errors_total",
    "penstock_kv_nvme_read_errors_total", "penstock_sequences_moved_total",
    "penstock_worker_role_changes_total"};
using Counts = std::array<double, std::size(kCounted)>;

// The properties that all processes of one worker share.
struct WorkerPlace {
  v1::WorkerState::Role first_role = v1::WorkerState::PREFILL;
  std::string endpoint;
  int host = 0;
  std::string model;
  std::string disk;  // a directory of this machine; empty: none
  // The configuration of one of its processes, which are counted from 1. The fields above are set
  // in it afterwards.
  std::function<v1::WorkerConfig(int life)> config;
};

// A worker of the cluster: the program of worker/main without its main function, in a process that
// can die and start again. Everything in it is the code under test.
class SimWorker {
 public:
  explicit SimWorker(WorkerPlace place) : place_(std::move(place)) {}

  const WorkerPlace& place() const { return place_; }
  Process* process() const { return process_; }  // the latest; nullptr: none yet
  bool up() const { return process_ != nullptr && process_->alive; }
  bool serving() const { return up() && runtime_ != nullptr; }

  void Start();
  // Its threads stop where they are, nothing is destroyed, and its peers hear of it.
  void Crash();
  void SetModel(const std::string& model) { place_.model = model; }
  void LoseDisk();

  void SetDraining(bool draining);
  void Turn();  // to the role that it was not asked for last
  void TakeRole(v1::WorkerState::Role role);

  // Flips a bit of every page, as no part of a cluster may.
  void Poison();
  // The counters of kCounted, each the sum over all its processes.
  Counts counts() const;
  // One counter of its present process, the sum over all labels.
  double Counted(std::string_view counter) const;

  // Empty when no block, credit, slab or swapped page is left over.
  std::string Leaks() const;
  int64_t leaked_blocks() const;
  bool idle() const { return !serving() || Leaks().empty(); }

 private:
  void Run();
  v1::WorkerConfig Config() const;

  WorkerPlace place_;
  int lives_ = 0;
  v1::WorkerState::Role role_ = v1::WorkerState::PREFILL;  // asked for last
  Process* process_ = nullptr;
  WorkerRuntime* runtime_ = nullptr;  // the latest's, once it serves
  Counts counted_{};                  // of earlier lives
};

}  // namespace penstock::world
