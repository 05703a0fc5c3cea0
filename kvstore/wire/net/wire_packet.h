#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace penstock {

// A control message between two wires: over the socket of a same-host lane or of a handshake, or as
// the header of a link's message. 128 bytes, little-endian, checked on arrival.
struct WirePacket {
  enum class Kind : uint32_t {
    // sender: `text` names the peer it expects; same host: `id` lies at `address`
    kHello = 1,
    // receiver: `code` says whether it accepts messages; over a link, `code` is a Memory; same
    // host: `id` is a Memory
    kWelcome = 2,
    // sender: message `id` of `size` bytes, the header of the user in `text`; over a link, `code`
    // is a Way; same host: the bytes are at `address`, or if `code` is not 0, at offset `address`
    // of the sender's GPU memory of that number
    kAnnounce = 3,
    kEnded = 4,    // receiver: `code` is the outcome of message `id`
    kAddress = 5,  // both: a piece, in `text`, at offset `id` of an address of `size` bytes
    // Over a link, for the lane's NCCL communicator:
    kNcclOpen = 6,    // sender: the payload is the communicator's id
    kNcclPosted = 7,  // receiver: waits for `size` bytes at offset `address` of message `id`
    kNcclStop = 8,    // both: posts nothing more; `text` has the reason
    // Before payloads use GPU memory:
    // sender: the payload is DeviceProbe's pattern; same host: placed as in kAnnounce
    kProbe = 9,
    // receiver: whether it arrived intact, encoded as in kEnded; same host: an error may also come
    // later, when the receiver cannot use the sender's GPU memory
    kProbed = 10,
    // Same host, sender: its GPU memory of number `code` has `address` bytes and the name `text`
    kExport = 11,
  };
  // The transport of an announced message's payload.
  enum class Way : uint32_t {
    kLink = 0,           // by the link, with the announcement
    kNccl = 1,           // by NCCL, in pieces that the receiver requests
    kLinkAfterNccl = 2,  // by the link, in place of a failed NCCL transfer
  };
  // The kind of memory in which a receiver can take payloads.
  enum class Memory : uint32_t {
    kHost = 0,  // host; the receiver does not know probes
    kHostProbed = 1,
    kDevice = 2,
  };
  static constexpr uint32_t kMagic = 0x32575350;  // "PSW2"

  uint32_t magic = kMagic;
  Kind kind = Kind::kHello;
  uint64_t id = 0;
  uint64_t address = 0;
  uint64_t size = 0;
  uint32_t code = 0;  // absl::StatusCode, if the kind says nothing else
  uint32_t text_size = 0;
  std::array<char, 88> text{};

  void SetText(std::string_view value);  // truncates `value` to the field's size
  void SetStatus(const absl::Status& status);
  std::string_view Text() const { return {text.data(), text_size}; }
  std::span<const std::byte> TextBytes() const { return std::as_bytes(std::span(Text())); }
  absl::Status Status() const;
};
static_assert(sizeof(WirePacket) == 128);

// The label of Socket::ExportSecret at both ends of a handshake.
inline constexpr char kSecretLabel[] = "EXPORTER-penstock-wire-2";

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

}  // namespace penstock
