#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/clock.h"
#include "kvstore/names/block_hash.h"
#include "proto/worker.pb.h"

namespace penstock {

struct FakeWorkerOptions {
  v1::WorkerState::Role role = v1::WorkerState::PREFILL;
  std::string worker_id;
  std::string listen = "127.0.0.1:0";
  uint64_t model_fingerprint = 1;
  uint64_t layout_fingerprint = 2;
  uint32_t block_tokens = 16;
  uint32_t max_model_len = 2048;
  Duration state_every = std::chrono::milliseconds(100);
  Duration token_every{};  // what a decode step takes
};

// A worker that speaks the protocol and computes nothing: a real gRPC server whose tokens come from
// FakeChoice. KV is not moved: the decode side samples what a prefill worker would have handed it.
// Any thread.
class FakeWorker {
 public:
  explicit FakeWorker(const FakeWorkerOptions& options);
  ~FakeWorker();  // as Kill

  const std::string& endpoint() const;

  // Every call, present and future, stops before it samples this position, until Release or its
  // end.
  void HoldAt(uint32_t position);
  void Release();
  // The next call to reach this position ends with this code instead (a grpc::StatusCode).
  void FailAt(uint32_t position, int code);
  void SetPhase(v1::WorkerState::Phase phase);
  // Sets the number of waiting requests that the worker reports.
  void SetWaiting(uint32_t requests);
  // While silent no state is sent, though the watch stays open.
  void SetSilent(bool silent);
  // Tells the watchers of its blocks that it has these.
  void Store(std::span<const BlockId> ids);
  // Ends the streams of those, as for a reader that is too slow.
  void DropBlockStreams();
  // Breaks every call and refuses new ones.
  void Kill();

  // Counts of calls of Prefill or Decode.
  int calls() const;
  int open_calls() const;
  int cancelled_calls() const;
  int held_calls() const;
  v1::SamplingSpec last_sampling() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock
