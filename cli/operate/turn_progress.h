#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "cli/shell/progress.h"
#include "proto/worker.pb.h"

namespace penstock {

// How far a worker is that changes its role, on standard error. One thread.
class TurnProgress {
 public:
  // `worker` as it was named; `role` that it is to have.
  TurnProgress(std::string worker, std::string role)
      : worker_(std::move(worker)), role_(std::move(role)) {}

  void Show(const v1::WorkerState& state);
  // The outcome: the worker has turned, it has not, or this command stops waiting for it.
  void Turned();
  void Failed() { progress_.Status(""); }
  void Left();

 private:
  const std::string worker_;
  const std::string role_;
  uint64_t open_most_ = 0;  // requests and handoffs
  Progress progress_;
};

// "[######....]": `done` of `all`.
std::string Bar(uint64_t done, uint64_t all);

}  // namespace penstock
