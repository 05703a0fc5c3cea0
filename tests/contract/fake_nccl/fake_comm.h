#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kvstore/wire/nccl/nccl_abi.h"
#include "tests/contract/fake_nccl/fake_gather.h"
#include "tests/cuda/emulator/emulated_stream.h"

namespace fake_nccl {

using penstock::cuda::EmulatedStream;
using penstock::nccl::Comm;
using penstock::nccl::Config;
using penstock::nccl::Result;
using penstock::nccl::UniqueId;
namespace nccl = penstock::nccl;

// How often a call is still in progress when it is asked.
constexpr int kLooks = 2;

struct Op {
  bool send = false;
  const std::byte* gather_from = nullptr;  // of an all-gather to `data`, else null
  std::byte* data = nullptr;
  uint64_t size = 0;
  EmulatedStream* stream = nullptr;
  int64_t number = 0;
};

enum class Phase { kOpening, kOpen, kClosing, kQuiet, kGone };

}  // namespace fake_nccl

// One rank of a communicator, under the name that the ABI gives it. Its thread is Work.
struct penstock::nccl::Comm {
  int rank = 0;
  int ranks = 2;
  std::string name;
  std::atomic<int> fd{-1};
  std::atomic<bool> quit{false};
  std::thread worker;

  std::mutex mutex;
  std::condition_variable changed;
  fake_nccl::Phase phase = fake_nccl::Phase::kOpening;
  Result result = kInProgress;
  int looks_left = fake_nccl::kLooks;
  bool connected = false;
  bool busy = false;  // a group is being enqueued
  std::vector<fake_nccl::Op> launching;
  std::deque<fake_nccl::Op> queue;  // enqueued, in order
  std::deque<uint64_t> awaited;     // of the peer's receives, those that no send has met
  // Also of streams at work, which must not wait for `mutex`: whoever has it may enqueue there.
  std::atomic<bool> failed{false};
  std::atomic<int> gathering{0};           // enqueued, and not over
  std::shared_ptr<FakeGatherGroup> group;  // of its ranks in this process
};

namespace fake_nccl {

// True if the calling thread captures the operation for a graph.
bool IsCaptured(const Op& op);
// Under comm.mutex: puts the operations of a group into their streams.
void Launch(Comm& comm);
// The communicator's thread: connects, then moves the bytes of one operation after the other.
void Work(Comm& comm);
// Ends the work; the memory of posted operations is not touched afterwards.
void Quit(Comm& comm);

}  // namespace fake_nccl
