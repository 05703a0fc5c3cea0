// A libnccl.so.2 for tests: its own ABI, loaded as the real one is, with sockets for a network and
// the emulated device's streams. It moves real bytes, between threads and processes, does
// everything as late as NCCL may, and writes down what NCCL's manual forbids:
//   * a call on a communicator that is opening, closing or gone, or still busy with the last one;
//   * a send whose receive is not posted (NCCL would spin on the GPU), or of another size;
//   * groups that do not balance, and destroying what was neither finalized nor revoked;
//   * all-gathers of different sizes, of overlapping memory, of ranks in several processes, or
//     captured for graphs on some ranks only.
// With FAKE_NCCL_LOG in the environment, violations and ends are appended to that file.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/contract/fake_nccl/fake_comm.h"
#include "tests/contract/fake_nccl/fake_record.h"

namespace fake_nccl {
namespace {

constexpr int kRanksMax = 8;

// Groups.

thread_local int group_depth = 0;
thread_local std::vector<std::pair<Comm*, Op>> grouped;

// True when `comm` may be called in this phase.
bool Expect(Comm& comm, Phase phase, const char* call) {
  std::lock_guard lock(comm.mutex);
  const bool good = comm.phase == phase && !comm.busy;
  if (!good) Violate(std::string(call) + " out of turn");
  return good;
}

Result AddToGroup(const char* call, bool send, void* data, size_t count, int type, int peer,
                  Comm* comm, void* stream) {
  Called(call);
  if (!Lives(comm, call)) return nccl::kInvalidArgument;
  if (!Expect(*comm, Phase::kOpen, call)) return nccl::kInvalidUsage;
  if (group_depth == 0) Violate(std::string(call) + " outside a group");
  if (type != nccl::kUint8 || peer != (comm->ranks == 1 ? 0 : 1 - comm->rank) || count == 0) {
    Violate(std::string(call) + " with wrong arguments");
  }
  Op op{.send = send,
        .data = static_cast<std::byte*>(data),
        .size = count,
        .stream = static_cast<EmulatedStream*>(stream)};
  op.number = NumberOperation();
  grouped.emplace_back(comm, op);
  return nccl::kSuccess;
}

}  // namespace

// NCCL's ABI. With C linkage, the namespace is not part of a name.

extern "C" {

Result ncclGetVersion(int* version) {
  const int64_t injected = Fault("version");
  *version = injected == 0 ? 22809 : static_cast<int>(injected);
  return nccl::kSuccess;
}

Result ncclGetUniqueId(UniqueId* id) {
  Called("ncclGetUniqueId");
  if (Fault("id_fails") != 0) return nccl::kSystemError;
  std::random_device random;
  std::string name = "fake-nccl";
  for (int i = 0; i < 4; ++i) name += "-" + std::to_string(random());
  std::memset(id, 0, sizeof(*id));
  std::memcpy(id->internal, name.data(), name.size());
  return nccl::kSuccess;
}

Result ncclCommInitRankConfig(Comm** comm, int ranks, UniqueId id, int rank, Config* config) {
  Called("ncclCommInitRankConfig");
  if (ranks < 1 || ranks > kRanksMax || rank < 0 || rank >= ranks) Violate("ranks");
  if (config->size != sizeof(Config) || config->magic != 0xcafebeef || config->blocking != 0) {
    Violate("a communicator that blocks, or no configuration");
  }
  auto made = std::make_unique<Comm>();
  made->rank = rank;
  made->ranks = ranks;
  made->name = std::string(id.internal, strnlen(id.internal, sizeof(id.internal)));
  made->group = FakeGatherGroup::Of(made->name, ranks);
  made->group->Join();
  *comm = Remember(std::move(made));
  (*comm)->worker = std::thread([worked = *comm] { Work(*worked); });
  return nccl::kInProgress;
}

Result ncclCommGetAsyncError(Comm* comm, Result* result) {
  Called("ncclCommGetAsyncError");
  if (!Lives(comm, "ncclCommGetAsyncError")) return nccl::kInvalidArgument;
  std::lock_guard lock(comm->mutex);
  *result = nccl::kInProgress;
  if (comm->looks_left > 0) {
    --comm->looks_left;
    return nccl::kSuccess;
  }
  if (comm->phase == Phase::kOpening && comm->connected) comm->phase = Phase::kOpen;
  if (comm->phase == Phase::kOpen && comm->busy && !comm->failed) Launch(*comm);
  if (comm->failed && comm->phase != Phase::kClosing) {
    *result = nccl::kRemoteError;
  } else if (comm->phase == Phase::kOpen || comm->phase == Phase::kQuiet) {
    *result = nccl::kSuccess;
  } else if (comm->phase == Phase::kClosing && comm->queue.empty() && comm->gathering == 0 &&
             comm->result == 0) {
    comm->phase = Phase::kQuiet;
    *result = nccl::kSuccess;
  }
  return nccl::kSuccess;
}

Result ncclGroupStart() {
  Called("ncclGroupStart");
  ++group_depth;
  return nccl::kSuccess;
}

Result ncclGroupEnd() {
  Called("ncclGroupEnd");
  if (--group_depth < 0) Violate("ncclGroupEnd without ncclGroupStart");
  Result result = nccl::kSuccess;
  for (auto& [comm, op] : std::exchange(grouped, {})) {
    std::lock_guard lock(comm->mutex);
    comm->launching.push_back(op);
    comm->busy = true;
    comm->looks_left = kLooks;
    result = nccl::kInProgress;
  }
  return result;
}

Result ncclSend(const void* data, size_t count, int type, int peer, Comm* comm, void* stream) {
  return AddToGroup("ncclSend", true, const_cast<void*>(data), count, type, peer, comm, stream);
}

Result ncclRecv(void* data, size_t count, int type, int peer, Comm* comm, void* stream) {
  return AddToGroup("ncclRecv", false, data, count, type, peer, comm, stream);
}

Result ncclAllGather(const void* from, void* to, size_t count, int type, Comm* comm, void* stream) {
  Called("ncclAllGather");
  if (!Lives(comm, "ncclAllGather")) return nccl::kInvalidArgument;
  if (!Expect(*comm, Phase::kOpen, "ncclAllGather")) return nccl::kInvalidUsage;
  Op op{.gather_from = static_cast<const std::byte*>(from),
        .data = static_cast<std::byte*>(to),
        .size = count,
        .stream = static_cast<EmulatedStream*>(stream)};
  const std::byte* own = op.data + static_cast<uint64_t>(comm->rank) * count;
  const std::byte* end = op.data + static_cast<uint64_t>(comm->ranks) * count;
  const bool apart = op.gather_from + count <= op.data || op.gather_from >= end;
  if (type != nccl::kUint8 || count == 0 || (op.gather_from != own && !apart)) {
    Violate("ncclAllGather with wrong arguments");
  }
  if (group_depth != 0) Violate("ncclAllGather in a group");
  if (comm->ranks > 1 && !comm->group->complete()) Violate("an all-gather beyond this process");
  op.number = NumberOperation();
  comm->group->Call(comm->rank, IsCaptured(op), Violate);
  std::lock_guard lock(comm->mutex);
  comm->launching.push_back(op);
  comm->busy = true;
  comm->looks_left = kLooks;
  return nccl::kInProgress;
}

Result ncclCommFinalize(Comm* comm) {
  Called("ncclCommFinalize");
  if (!Lives(comm, "ncclCommFinalize")) return nccl::kInvalidArgument;
  if (!Expect(*comm, Phase::kOpen, "ncclCommFinalize")) return nccl::kInvalidUsage;
  std::lock_guard lock(comm->mutex);
  comm->phase = Phase::kClosing;
  comm->result = Fault("finalize_stalls") != 0 ? nccl::kInProgress : nccl::kSuccess;
  comm->looks_left = kLooks;
  return nccl::kInProgress;
}

#ifndef FAKE_NCCL_OLD  // From 2.28.7 on.
Result ncclCommRevoke(Comm* comm, int flags) {
  Called("ncclCommRevoke");
  if (!Lives(comm, "ncclCommRevoke")) return nccl::kInvalidArgument;
  if (flags != 0) Violate("ncclCommRevoke with flags");
  const bool stalls = Fault("revoke_stalls") != 0;
  if (!stalls) Quit(*comm);
  std::lock_guard lock(comm->mutex);
  if (comm->phase != Phase::kOpen) Violate("ncclCommRevoke out of turn");
  comm->phase = Phase::kClosing;
  comm->busy = false;  // with what was never enqueued
  comm->result = stalls ? nccl::kInProgress : nccl::kSuccess;
  comm->looks_left = kLooks;
  return nccl::kInProgress;
}
#endif

Result ncclCommDestroy(Comm* comm) {
  Called("ncclCommDestroy");
  if (!Lives(comm, "ncclCommDestroy")) return nccl::kInvalidArgument;
  Expect(*comm, Phase::kQuiet, "ncclCommDestroy");
  Quit(*comm);
  Forget(comm);
  WriteLog("destroyed");
  return nccl::kSuccess;
}

Result ncclCommAbort(Comm* comm) {
  Called("ncclCommAbort");
  if (!Lives(comm, "ncclCommAbort")) return nccl::kInvalidArgument;
  while (Fault("abort_stalls") != 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  Quit(*comm);
  Forget(comm);
  WriteLog("aborted");
  return nccl::kSuccess;
}

const char* ncclGetErrorString(Result result) {
  static constexpr const char* kTexts[] = {"no error",
                                           "unhandled cuda error",
                                           "system error",
                                           "internal error",
                                           "bad argument",
                                           "invalid usage",
                                           "remote process exited or there was a network error",
                                           "in progress"};
  return result >= 0 && result < 8 ? kTexts[result] : "unknown";
}

const char* ncclGetLastError(Comm*) { return "the fake's last words"; }

}  // extern "C"

}  // namespace fake_nccl
