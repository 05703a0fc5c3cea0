#pragma once

#include <sys/types.h>

#include <deque>
#include <functional>
#include <optional>

#include "kvstore/wire/gpu_copies.h"
#include "kvstore/wire/loop.h"
#include "kvstore/wire/net/device_probe.h"
#include "kvstore/wire/net/packet_socket.h"
#include "kvstore/wire/same_host/gpu_imports.h"
#include "kvstore/wire/wire.h"

namespace penstock {

// A peer that sends to this wire. Payloads in the peer's host memory are copied by the CPU, one at
// a time; those in its GPU memory by this process's GPU, a few at a time. On the loop's thread.
class SameHostConnection {
 public:
  struct Shared {
    WireLoop& loop;
    WireReceiver& receiver;
    GpuCopies* copies;   // null: host memory only
    DeviceProbe* probe;  // of the same GPU
  };

  // Takes ownership of `fd`. `pid` is the peer's.
  SameHostConnection(const Shared& shared, int fd, pid_t pid);
  // Ends every message.
  ~SameHostConnection();

  // `on_closed` is called once, when the peer is gone or has broken the protocol.
  absl::Status Start(std::function<void()> on_closed);

  bool ready() const {
    return !broken_ && (current_.has_value() || !copying_.empty() || !waiting_.empty());
  }
  // Takes what the GPU has copied, and copies one chunk of the current message or begins the next.
  void Progress();

 private:
  struct Landing {
    WirePacket packet;
    WireTarget target;
    const std::byte* on_gpu = nullptr;  // the payload, if it is in the peer's GPU memory
    size_t copied = 0;                  // by the CPU
    bool probe = false;                 // DeviceProbe's pattern, not a message
  };
  struct Copying {
    Landing landing;
    GpuCopies::Copy copy;
  };

  void OnPacket(const WirePacket& packet);
  void Greet(const WirePacket& hello);
  void BeginNext();
  absl::StatusOr<WireTarget> Announce(const WirePacket& packet);
  void CopyChunk();
  void Finish(const Landing& landed);
  void LoseAll();
  void Break();
  void SendEnded(uint64_t id, const absl::Status& status);

  // Defined in same_host_connection_gpu.cc.
  bool OnGpuPacket(const WirePacket& packet);
  void StartProbe(const WirePacket& packet, const WireTarget& target);
  void EndProbe(const absl::Status& status);
  bool StartCopy(const Landing& landing);
  bool TakeCopied();
  void FailGpu(const absl::Status& status);

  const Shared shared_;
  const pid_t pid_;
  PacketSocket socket_;
  std::function<void()> on_closed_;
  bool greeted_ = false;
  bool broken_ = false;
  bool probed_ = false;
  bool gpu_failed_ = false;
  std::deque<WirePacket> waiting_;
  std::optional<Landing> current_;     // copied by the CPU
  std::deque<Copying> copying_;        // by the GPU, in order
  std::optional<GpuImports> imports_;  // with a GPU
};

}  // namespace penstock
