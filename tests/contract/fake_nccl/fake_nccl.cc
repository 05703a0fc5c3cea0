// A libnccl.so.2 for tests: its own ABI, loaded as the real one is, with sockets for a network and
// the emulated device's streams. It moves real bytes, between threads and processes, does
// everything as late as NCCL may, and writes down what NCCL's manual forbids:
//   * a call on a communicator that is opening, closing or gone, or still busy with the last one;
//   * a send whose receive is not posted (NCCL would spin on the GPU), or of another size;
//   * groups that do not balance, and destroying what was neither finalized nor revoked;
//   * all-gathers of different sizes, of overlapping memory, or of ranks in several processes.
// With FAKE_NCCL_LOG in the environment, violations and ends are appended to that file.

#include "tests/contract/fake_nccl/fake_nccl.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kvstore/wire/nccl/nccl_abi.h"
#include "tests/contract/fake_nccl/fake_gather.h"
#include "tests/cuda/emulator/emulated_stream.h"

namespace {

using penstock::cuda::EmulatedStream;
using penstock::nccl::Comm;
using penstock::nccl::Config;
using penstock::nccl::Result;
using penstock::nccl::UniqueId;
namespace nccl = penstock::nccl;

// How often a call is still in progress when it is asked.
constexpr int kLooks = 2;
constexpr int kPollMs = 2;
constexpr int kRanksMax = 8;

struct Op {
  bool send = false;
  const std::byte* gather_from = nullptr;  // of an all-gather to `data`, else null
  std::byte* data = nullptr;
  uint64_t size = 0;
  EmulatedStream* stream = nullptr;
  int64_t number = 0;
};

enum class Phase { kOpening, kOpen, kClosing, kQuiet, kGone };

}  // namespace

// The name that the ABI gives it.
struct penstock::nccl::Comm {
  int rank = 0;
  int ranks = 2;
  std::string name;
  std::atomic<int> fd{-1};
  std::atomic<bool> quit{false};
  std::thread worker;

  std::mutex mutex;
  std::condition_variable changed;
  Phase phase = Phase::kOpening;
  Result result = nccl::kInProgress;
  int looks_left = kLooks;
  bool connected = false;
  bool busy = false;  // a group is being enqueued
  std::vector<Op> launching;
  std::deque<Op> queue;          // enqueued, in order
  std::deque<uint64_t> awaited;  // of the peer's receives, those that no send has met
  // Also of streams at work, which must not wait for `mutex`: whoever has it may enqueue there.
  std::atomic<bool> failed{false};
  std::atomic<int> gathering{0};           // enqueued, and not over
  std::shared_ptr<FakeGatherGroup> group;  // of its ranks in this process
};

namespace {

// ------------------------------------------------------------------------------- what is recorded

struct Record {
  std::mutex mutex;
  std::map<std::string, int64_t> calls;
  std::map<std::string, int64_t> faults;
  std::string violations;
  std::string violations_given;
  int64_t operations = 0;
  std::set<Comm*> open;
  std::vector<std::unique_ptr<Comm>> all;  // never freed: an address means one communicator
};
Record& record() {
  static auto* record = new Record();  // Outlives every thread.
  return *record;
}

void WriteLog(const std::string& line) {
  const char* path = std::getenv("FAKE_NCCL_LOG");
  if (path != nullptr) std::ofstream(path, std::ios::app) << line << std::endl;
}

void Violate(const std::string& what) {
  WriteLog("violation: " + what);
  std::lock_guard lock(record().mutex);
  record().violations += what + "\n";
}

void Called(const char* name) {
  std::lock_guard lock(record().mutex);
  ++record().calls[name];
}

int64_t Fault(const char* name) {
  std::lock_guard lock(record().mutex);
  return record().faults[name];
}

// True when `comm` lives. A call on any other communicator would touch freed memory: a violation.
bool Lives(Comm* comm, const char* call) {
  bool lives = false;
  {
    std::lock_guard lock(record().mutex);
    lives = record().open.contains(comm);
  }
  if (!lives) Violate(std::string(call) + " on a communicator that is gone");
  return lives;
}

// -------------------------------------------------------------------------------------- the
// network

sockaddr_un AddressOf(const std::string& name, socklen_t* size) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // abstract
  *size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

bool Ready(int fd, short events) {
  pollfd polled{.fd = fd, .events = events, .revents = 0};
  return poll(&polled, 1, kPollMs) == 1;
}

// The sender, rank 0, listens; -1 when `comm` quits before the other is there.
int Connect(Comm& comm) {
  socklen_t size = 0;
  const sockaddr_un address = AddressOf(comm.name, &size);
  const auto* plain = reinterpret_cast<const sockaddr*>(&address);
  if (comm.rank == 0) {
    const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, plain, size) != 0 || listen(listener, 1) != 0) Violate("an id used twice");
    while (!comm.quit && !Ready(listener, POLLIN)) continue;
    const int fd = comm.quit ? -1 : accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    close(listener);
    return fd;
  }
  while (!comm.quit) {
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, plain, size) == 0) return fd;
    close(fd);
    poll(nullptr, 0, kPollMs);
  }
  return -1;
}

// All of it, or false when `comm` quits or the peer is gone.
bool Transfer(Comm& comm, std::byte* data, uint64_t size, bool send) {
  while (size > 0) {
    if (comm.quit) return false;
    if (!Ready(comm.fd, send ? POLLOUT : POLLIN)) continue;
    const ssize_t moved = send ? ::send(comm.fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT)
                               : recv(comm.fd, data, size, MSG_DONTWAIT);
    if (moved == 0 || (moved < 0 && errno != EAGAIN)) return false;
    if (moved < 0) continue;
    data += moved;
    size -= static_cast<uint64_t>(moved);
  }
  return true;
}

// -------------------------------------------------------------------------------- the "GPU's" work

// The receiver tells the sender of a receive that is posted.
void TellAwaited(Comm& comm, uint64_t size) {
  if (::send(comm.fd, &size, sizeof(size), MSG_NOSIGNAL) != sizeof(size)) comm.failed = true;
}

void ReadAwaited(Comm& comm) {
  uint64_t size = 0;
  while (recv(comm.fd, &size, sizeof(size), MSG_DONTWAIT) == sizeof(size)) {
    comm.awaited.push_back(size);
  }
}

// A communicator of one rank: the sends of a group meet its receives, in order.
void LaunchToSelf(Comm& comm) {
  std::deque<Op> sends;
  for (const Op& op : comm.launching) {
    if (op.send) sends.push_back(op);
  }
  for (const Op& op : comm.launching) {
    if (op.send) continue;
    if (sends.empty() || sends.front().size != op.size) return Violate("a receive without a send");
    std::memcpy(op.data, sends.front().data, op.size);
    sends.pop_front();
  }
  if (!sends.empty()) Violate("a send without a receive");
}

void Fail(Comm& comm) {
  std::lock_guard lock(comm.mutex);
  comm.failed = true;
  comm.changed.notify_all();
}

// On whichever thread waits for the stream.
void RunGather(Comm& comm, const Op& op) {
  if (op.number == Fault("error_at")) comm.failed = true;
  const bool stalls = op.number == Fault("stall_at") || op.number == Fault("error_at");
  while (stalls && !comm.quit) poll(nullptr, 0, kPollMs);
  if (!comm.quit) {
    comm.group->Run(comm.rank, {.from = op.gather_from, .to = op.data, .size = op.size}, comm.quit,
                    Violate);
  }
  --comm.gathering;
}

// Under comm.mutex.
void LaunchGathers(Comm& comm) {
  for (const Op& op : comm.launching) {
    if (op.gather_from == nullptr) continue;
    ++comm.gathering;
    op.stream->Enqueue([&comm, op] { RunGather(comm, op); });
  }
  std::erase_if(comm.launching, [](const Op& op) { return op.gather_from != nullptr; });
}

// Under comm.mutex: what a group holds comes into the stream.
void Launch(Comm& comm) {
  LaunchGathers(comm);
  if (comm.ranks == 1) {
    LaunchToSelf(comm);
    comm.launching.clear();
  }
  for (Op& op : comm.launching) {
    op.stream->enqueued.fetch_add(1);
    if (!op.send) TellAwaited(comm, op.size);
    if (op.send) {
      ReadAwaited(comm);
      if (comm.awaited.empty() || comm.awaited.front() != op.size) {
        Violate(comm.awaited.empty() ? "a send before its receive was posted"
                                     : "a send of another size than its receive");
      }
      if (!comm.awaited.empty()) comm.awaited.pop_front();
    }
    comm.queue.push_back(op);
  }
  comm.launching.clear();
  comm.busy = false;
  comm.changed.notify_all();
}

void EndOp(const Op& op) {
  op.stream->done.fetch_add(1);
  op.stream->done.notify_all();
}

// True: go on with the next.
bool RunOp(Comm& comm, const Op& op) {
  if (op.number == Fault("error_at")) return false;
  if (op.number == Fault("stall_at")) {
    while (!comm.quit) poll(nullptr, 0, kPollMs);
    return false;
  }
  return Transfer(comm, op.data, op.size, op.send);
}

void Work(Comm& comm) {
  const bool fails = Fault("init_fails") != 0;
  while (!comm.quit && Fault("init_stalls") != 0) poll(nullptr, 0, kPollMs);
  if (!fails && comm.ranks == 2) comm.fd = Connect(comm);
  while (!comm.quit && !fails && comm.ranks > 2 && !comm.group->complete()) {
    poll(nullptr, 0, kPollMs);
  }
  std::unique_lock lock(comm.mutex);
  comm.connected = comm.fd >= 0 || (!fails && comm.ranks != 2);
  if (!comm.connected) comm.failed = true;
  while (!comm.quit && !comm.failed) {
    if (comm.queue.empty()) {
      comm.changed.wait_for(lock, std::chrono::milliseconds(kPollMs));
      continue;
    }
    const Op op = comm.queue.front();
    lock.unlock();
    const bool moved = RunOp(comm, op);
    if (!moved && !comm.quit) Fail(comm);
    lock.lock();
    if (!moved) break;
    comm.queue.pop_front();
    EndOp(op);
    comm.changed.notify_all();
  }
  // A kernel of a failed communicator runs on until somebody revokes or aborts it.
  while (!comm.quit) comm.changed.wait_for(lock, std::chrono::milliseconds(kPollMs));
  for (const Op& op : std::exchange(comm.queue, {})) EndOp(op);
}

// Ends the work; what was posted is touched no more.
void Quit(Comm& comm) {
  comm.quit = true;
  comm.changed.notify_all();
  if (comm.worker.joinable()) comm.worker.join();
  if (comm.fd >= 0) close(comm.fd.exchange(-1));
}

void Forget(Comm* comm) {
  std::lock_guard lock(record().mutex);
  record().open.erase(comm);
}

// ------------------------------------------------------------------------------------------ groups

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
  {
    std::lock_guard lock(record().mutex);
    op.number = ++record().operations;
  }
  grouped.emplace_back(comm, op);
  return nccl::kSuccess;
}

}  // namespace

// --------------------------------------------------------------------------------------- NCCL's
// ABI

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
  *comm = made.get();
  std::lock_guard lock(record().mutex);
  record().open.insert(made.get());
  record().all.push_back(std::move(made));
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
  {
    std::lock_guard lock(record().mutex);
    op.number = ++record().operations;
  }
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
  std::this_thread::sleep_for(std::chrono::milliseconds(Fault("abort_takes_ms")));
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

// ------------------------------------------------------------------------------------- for the
// tests

void fake_nccl_reset() {
  std::lock_guard lock(record().mutex);
  if (!record().open.empty()) record().violations += "reset while communicators are open\n";
  record().calls.clear();
  record().faults.clear();
  record().violations.clear();
  record().operations = 0;
}

void fake_nccl_inject(const char* fault, int64_t value) {
  std::lock_guard lock(record().mutex);
  record().faults[fault] = value;
}

int64_t fake_nccl_count(const char* call) {
  std::lock_guard lock(record().mutex);
  return record().calls[call];
}

const char* fake_nccl_violations() {
  std::lock_guard lock(record().mutex);
  record().violations_given = record().violations;
  return record().violations_given.c_str();
}

int64_t fake_nccl_open() {
  std::lock_guard lock(record().mutex);
  return static_cast<int64_t>(record().open.size());
}

}  // extern "C"
