#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvstore/wire/loop.h"

namespace penstock {

// What two wires say to each other: over the control socket of a same-host lane, or as the header
// of a UCX active message. 128 bytes, little-endian, as they lie in memory; checked on arrival.
struct WirePacket {
  enum class Kind : uint32_t {
    kHello = 1,     // sender: whom it looks for, in `text`; same host: `id` lies at `address`
    kWelcome = 2,   // receiver: `code` tells whether it takes messages; over UCX, it is a Memory
    kAnnounce = 3,  // sender: message `id` of `size` bytes (same host: at `address`), the header
                    // of the user in `text`; over UCX, `code` is a Way
    kEnded = 4,     // receiver: what became of message `id`
    kAddress = 5,   // either: a piece, in `text`, at `id` of an address of `size` bytes
    // Over UCX, of its lane's NCCL communicator.
    kNcclOpen = 6,    // sender: the payload names it
    kNcclPosted = 7,  // receiver: awaits `size` bytes at `address` of message `id`
    kNcclStop = 8,    // either: posts nothing any more; why, in `text`
    // Over UCX, before payloads go from, or to, the memory of a GPU.
    kProbe = 9,    // sender: the payload is DeviceProbe's
    kProbed = 10,  // receiver: whether it came whole, as in kEnded
  };
  // How the payload of an announced message comes.
  enum class Way : uint32_t {
    kWithIt = 0,   // by UCX
    kByNccl = 1,   // in pieces that the receiver asks for
    kInstead = 2,  // by UCX after all, of a message that was to come by NCCL
  };
  // Whose memory a receiver has for payloads.
  enum class Memory : uint32_t {
    kHost = 0,  // and it knows of no probes
    kHostProbed = 1,
    kDevice = 2,
  };
  static constexpr uint32_t kMagic = 0x31575350;  // "PSW1"

  uint32_t magic = kMagic;
  Kind kind = Kind::kHello;
  uint64_t id = 0;
  uint64_t address = 0;  // in the sender's address space
  uint64_t size = 0;
  uint32_t code = 0;  // absl::StatusCode
  uint32_t text_size = 0;
  std::array<char, 88> text{};

  void SetText(std::string_view value);  // cut to what fits
  void SetStatus(const absl::Status& status);
  std::string_view Text() const { return {text.data(), text_size}; }
  std::span<const std::byte> TextBytes() const { return std::as_bytes(std::span(Text())); }
  absl::Status Status() const;
};
static_assert(sizeof(WirePacket) == 128);

// Checks the size, the magic, the kind and the limits of a packet that came in.
absl::StatusOr<WirePacket> ParseWirePacket(std::span<const std::byte> bytes);

// An address too long for one packet.
std::vector<WirePacket> SplitAddress(std::string_view address);

// Puts the pieces together again.
class AddressPieces {
 public:
  // DATA_LOSS when a piece does not follow what is there. OK and complete() with the last.
  absl::Status Add(const WirePacket& piece);
  bool complete() const { return complete_; }
  const std::string& address() const { return address_; }

 private:
  std::string address_;
  bool complete_ = false;
};

// One end of a connected socket: SOCK_SEQPACKET, or SOCK_STREAM with one packet after the other.
// Lives on the loop's thread; must not be destroyed in its own callbacks.
class PacketSocket {
 public:
  struct Callbacks {
    std::function<void(const WirePacket&)> on_packet;
    // Once: the peer is gone, or has sent what no peer sends.
    std::function<void(absl::Status)> on_closed;
  };

  PacketSocket(WireLoop& loop, int fd);  // Takes `fd`.
  ~PacketSocket();
  PacketSocket(const PacketSocket&) = delete;
  PacketSocket& operator=(const PacketSocket&) = delete;

  absl::Status Start(Callbacks callbacks);
  // Waits in a queue of ours when the socket is full; the callers bound how many that are.
  void Send(const WirePacket& packet);
  // The peer sees our end close, at once. What has come in is dropped.
  void HangUp();
  // Whether the peer has closed its end, though its last packets may not have been read.
  bool HungUp() const;

 private:
  void OnReady(uint32_t events);
  void Receive();
  void Flush();
  void WatchWriting(bool watch);
  void Fail(absl::Status status);

  WireLoop& loop_;
  const int fd_;
  bool stream_ = false;
  Callbacks callbacks_;
  std::deque<WirePacket> outgoing_;
  size_t outgoing_sent_ = 0;                 // of the first; only streams split packets
  std::array<std::byte, 128 + 1> incoming_;  // one more shows a packet that is too long
  size_t incoming_size_ = 0;
  bool writing_ = false;  // EPOLLOUT is watched
  bool failed_ = false;
};

}  // namespace penstock
