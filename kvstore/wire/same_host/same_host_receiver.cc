#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <list>
#include <utility>

#include "base/check.h"
#include "base/log/log.h"
#include "kvstore/wire/net/address.h"
#include "kvstore/wire/net/listener.h"
#include "kvstore/wire/net/socket.h"
#include "kvstore/wire/same_host/same_host.h"
#include "kvstore/wire/same_host/same_host_connection.h"

namespace penstock {
namespace {

constexpr size_t kConnectionsMax = 256;

class ReceiverImpl final : public SameHostReceiver, public WireLoop::Source {
 public:
  ReceiverImpl(WireLoop& loop, WireReceiver& receiver, std::string name)
      : loop_(loop), receiver_(receiver), name_(std::move(name)) {
    loop_.AddSource(this);
  }
  ~ReceiverImpl() override {
    PENSTOCK_CHECK(loop_.OnThread());
    loop_.RemoveSource(this);
  }

  absl::Status UseGpu(const SameHostGpu& gpu) {
    gpu.device->Select();
    ASSIGN_OR_RETURN(copies_, GpuCopies::Create(gpu.device));
    probe_ = gpu.probe;
    return absl::OkStatus();
  }
  // Takes ownership of `fd`, which listens.
  absl::Status Start(int fd) {
    ASSIGN_OR_RETURN(listener_,
                     WireListener::Create(loop_, fd, [this](int accepted) { Admit(accepted); }));
    return absl::OkStatus();
  }

  const std::string& name() const override { return name_; }

  bool Progress() override {
    connections_.remove_if([](const Entry& entry) { return entry.closed; });
    bool worked = false;
    for (Entry& entry : connections_) {
      if (!entry.connection->ready()) continue;
      entry.connection->Progress();
      worked = true;
    }
    return worked;
  }

  bool Arm() override {
    return std::none_of(connections_.begin(), connections_.end(), [](const Entry& entry) {
      return entry.closed || entry.connection->ready();
    });
  }

 private:
  struct Entry {
    std::unique_ptr<SameHostConnection> connection;
    // Destroyed later, in Progress, because a connection must not die in its own callback.
    bool closed = false;
  };

  void Admit(int fd);

  WireLoop& loop_;
  WireReceiver& receiver_;
  const std::string name_;
  std::unique_ptr<GpuCopies> copies_;  // null: host memory only
  DeviceProbe* probe_ = nullptr;
  std::unique_ptr<WireListener> listener_;
  std::list<Entry> connections_;
};

void ReceiverImpl::Admit(int fd) {
  const auto peer = SocketPeer(fd);
  if (!peer || peer->uid != geteuid() || peer->pid == 0 || connections_.size() >= kConnectionsMax) {
    close(fd);
    return;
  }
  Entry& entry = connections_.emplace_back();
  entry.connection = std::make_unique<SameHostConnection>(
      SameHostConnection::Shared{
          .loop = loop_, .receiver = receiver_, .copies = copies_.get(), .probe = probe_},
      fd, peer->pid);
  const auto started = entry.connection->Start([&entry] { entry.closed = true; });
  if (!started.ok()) entry.closed = true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SameHostReceiver>> ListenOnSameHost(WireLoop& loop,
                                                                   WireReceiver& receiver,
                                                                   const SameHostGpu& gpu) {
  std::string name = "penstock-wire-" + RandomName();
  ASSIGN_OR_RETURN(const int fd, ListenAbstract(name));
  auto side = std::make_unique<ReceiverImpl>(loop, receiver, std::move(name));
  if (gpu.device != nullptr) {
    if (const absl::Status used = side->UseGpu(gpu); !used.ok()) {
      LogWarning("gpu_memory_not_used", "lanes within this host use host memory: {}",
                 Message(used));
    }
  }
  RETURN_IF_ERROR(side->Start(fd));
  return side;
}

}  // namespace penstock
