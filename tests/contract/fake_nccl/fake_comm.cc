#include "tests/contract/fake_nccl/fake_comm.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "tests/contract/fake_nccl/fake_record.h"
#include "tests/cuda/emulator/hardware_stream.h"

namespace fake_nccl {
namespace {

constexpr int kPollMs = 2;

// The network.

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

// The GPU's work.

// The operation's memory, which may be a GPU's.
std::byte* Seen(const Op& op) {
  return static_cast<const penstock::cuda::HardwareStream*>(op.stream)->Seen(op.data);
}

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
    std::memcpy(Seen(op), Seen(sends.front()), op.size);
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
    if (IsCaptured(op)) {
      op.stream->Enqueue([&comm, op] {  // with every launch of the graph
        ++comm.gathering;
        RunGather(comm, op);
      });
      continue;
    }
    ++comm.gathering;
    op.stream->Enqueue([&comm, op] { RunGather(comm, op); });
  }
  std::erase_if(comm.launching, [](const Op& op) { return op.gather_from != nullptr; });
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
  return Transfer(comm, Seen(op), op.size, op.send);
}

}  // namespace

bool IsCaptured(const Op& op) {
  return static_cast<const penstock::cuda::HardwareStream*>(op.stream)->captures();
}

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

void Quit(Comm& comm) {
  comm.quit = true;
  comm.changed.notify_all();
  if (comm.worker.joinable()) comm.worker.join();
  if (comm.fd >= 0) close(comm.fd.exchange(-1));
}

}  // namespace fake_nccl
