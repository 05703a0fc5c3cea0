#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace penstock {

// One connection of ZeroMQ's protocol ZMTP 3.0 (rfc.zeromq.org/spec/23, mechanism NULL), from
// received bytes to what they ask for. Our socket's type follows from the peer's, so that one port
// serves both: PUB for SUB and XSUB, ROUTER for REQ and DEALER. Peers that speak ZMTP 3.1 fall back
// to 3.0; those of 1.0 and 2.0 (ZeroMQ before 4.0) are refused.
//
// Memory is bounded by the limits below. After an error the connection must be closed. No I/O and
// no clock; one thread.
class ZmtpPeer {
 public:
  static constexpr size_t kCommandBytesMax = 512;  // of a command, e.g. READY with its properties
  static constexpr size_t kFrameBytesMax = 256;    // of a message's frame
  static constexpr size_t kTopicsMax = 16;         // subscriptions
  static constexpr size_t kRequestsMax = 16;       // that wait

  enum class Kind { kUnknown, kSubscriber, kRequester };

  ZmtpPeer();

  // Takes received bytes. INVALID_ARGUMENT, with the reason, for bytes that no peer sends;
  // RESOURCE_EXHAUSTED beyond a limit.
  absl::Status Take(std::string_view bytes);
  // Bytes to send now: the greeting, READY and PONG.
  std::string TakeOutput() { return std::exchange(output_, {}); }

  // Unknown until the peer is ready.
  Kind kind() const { return kind_; }
  bool Subscribes(std::string_view topic) const;
  // The next request of a requester, the first sequence number that it wants; nullopt: none waits.
  std::optional<uint64_t> TakeRequest();

 private:
  struct Frame {
    uint8_t flags = 0;
    std::string_view body;
  };

  absl::Status CheckGreeting() const;
  // The first frame of `input`, with the size of all of it in `size`; nullopt: not all is here.
  static absl::StatusOr<std::optional<Frame>> FrameIn(std::string_view input, size_t* size);
  absl::Status OnFrame(const Frame& frame);
  absl::Status OnCommand(std::string_view body);
  absl::Status OnReady(std::string_view properties);
  absl::Status OnMessage(const Frame& frame);
  absl::Status OnSubscription(std::string_view body);
  void SendCommand(std::string_view name, std::string_view rest);

  std::string input_;  // begun, and not complete yet
  std::string output_;
  bool greeted_ = false;
  Kind kind_ = Kind::kUnknown;
  std::vector<std::string> topics_;
  bool delimited_ = false;  // the first frame of a request was here
  std::vector<uint64_t> requests_;
};

// One frame of a message as it travels. `more`: another frame of the same message follows.
void AppendZmtpFrame(std::string& out, std::string_view body, bool more);
// A frame of 8 bytes, big-endian.
void AppendZmtpSequence(std::string& out, uint64_t sequence, bool more);

}  // namespace penstock
