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

// A control message between two wires: over the control socket of a same-host lane, or as the
// header of a UCX active message. 128 bytes, little-endian, checked on arrival.
struct WirePacket {
  enum class Kind : uint32_t {
    // sender: `text` names the peer it expects; same host: `id` lies at `address`
    kHello = 1,
    // receiver: `code` says whether it accepts messages; over UCX, `code` is a Memory
    kWelcome = 2,
    kAnnounce = 3,  // sender: message `id` of `size` bytes (same host: at `address`), the header
                    // of the user in `text`; over UCX, `code` is a Way
    kEnded = 4,     // receiver: `code` is the outcome of message `id`
    kAddress = 5,   // both: a piece, in `text`, at offset `id` of an address of `size` bytes
    // Over UCX, for the lane's NCCL communicator:
    kNcclOpen = 6,    // sender: the payload is the communicator's id
    kNcclPosted = 7,  // receiver: waits for `size` bytes at offset `address` of message `id`
    kNcclStop = 8,    // both: posts nothing more; `text` has the reason
    // Over UCX, before payloads use GPU memory:
    kProbe = 9,    // sender: the payload is DeviceProbe's pattern
    kProbed = 10,  // receiver: whether it arrived intact, encoded as in kEnded
  };
  // The transport of an announced message's payload.
  enum class Way : uint32_t {
    kUcx = 0,           // by UCX, with the announcement
    kNccl = 1,          // by NCCL, in pieces that the receiver requests
    kUcxAfterNccl = 2,  // by UCX, in place of a failed NCCL transfer
  };
  // The kind of memory in which a receiver can take payloads.
  enum class Memory : uint32_t {
    kHost = 0,  // host; the receiver does not know probes
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

  void SetText(std::string_view value);  // truncates `value` to the field's size
  void SetStatus(const absl::Status& status);
  std::string_view Text() const { return {text.data(), text_size}; }
  std::span<const std::byte> TextBytes() const { return std::as_bytes(std::span(Text())); }
  absl::Status Status() const;
};
static_assert(sizeof(WirePacket) == 128);

// Checks a received packet's size, magic, kind and limits.
absl::StatusOr<WirePacket> ParseWirePacket(std::span<const std::byte> bytes);

// Splits an address that is too long for one packet.
std::vector<WirePacket> SplitAddress(std::string_view address);

// Reassembles a split address.
class AddressPieces {
 public:
  // DATA_LOSS when a piece is out of sequence. complete() is true after the last piece.
  absl::Status Add(const WirePacket& piece);
  bool complete() const { return complete_; }
  const std::string& address() const { return address_; }

 private:
  std::string address_;
  bool complete_ = false;
};

// One end of a connected socket that carries packets: SOCK_SEQPACKET or SOCK_STREAM. On the loop's
// thread; must not be destroyed in its own callbacks.
class PacketSocket {
 public:
  struct Callbacks {
    std::function<void(const WirePacket&)> on_packet;
    // Called once: the peer closed the connection or sent an invalid packet.
    std::function<void(absl::Status)> on_closed;
  };

  PacketSocket(WireLoop& loop, int fd);  // takes ownership of `fd`
  ~PacketSocket();
  PacketSocket(const PacketSocket&) = delete;
  PacketSocket& operator=(const PacketSocket&) = delete;

  absl::Status Start(Callbacks callbacks);
  // Queues the packet when the socket is full; callers bound the number of packets.
  void Send(const WirePacket& packet);
  // Closes this end at once; unread packets are dropped.
  void HangUp();
  // True when the peer has closed its end, even if its last packets were not read yet.
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
  size_t outgoing_sent_ = 0;  // bytes sent of the first packet; only streams split packets
  std::array<std::byte, 128 + 1> incoming_;  // one extra byte reveals a packet that is too long
  size_t incoming_size_ = 0;
  bool writing_ = false;  // EPOLLOUT is being watched
  bool failed_ = false;
};

}  // namespace penstock
