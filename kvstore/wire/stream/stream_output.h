#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "kvstore/wire/stream/frame.h"
#include "kvstore/wire/stream/frame_seal.h"

namespace penstock {

// The bytes that a link sends, in their order: small frames first, then the parts of the oldest
// wanted message. On the loop's thread.
class StreamOutput {
 public:
  enum class State {
    kIdle,     // everything is with the kernel
    kBlocked,  // the connection takes no more for now
    kMore,     // others get their turn first
  };

  // Plain with an empty `secret`.
  StreamOutput(const std::string& secret, StreamDirection direction);

  // The connection's first bytes. Before any frame.
  void Begin(const StreamHello& hello);
  void Add(const StreamFrame& frame, std::vector<std::byte> body);
  // Adds the parts of message `id`. `payload` stays valid until `on_sent`, which is called when
  // the kernel has all of it.
  void AddParts(uint64_t id, std::span<const std::byte> payload, std::function<void()> on_sent);
  size_t frames() const { return frames_.size(); }
  bool idle() const {
    return current_.bytes_left() == 0 && next_.bytes_left() == 0 && frames_.empty() &&
           messages_.empty();
  }

  // Sends a bounded amount. UNAVAILABLE when the connection is gone.
  absl::StatusOr<State> Write(int fd);
  // Drops everything; nothing reads payloads any more.
  void Clear();

 private:
  struct Frame {
    StreamFrame head;
    std::vector<std::byte> body;
  };
  struct Message {
    uint64_t id = 0;
    std::span<const std::byte> payload;
    size_t offset = 0;
    std::function<void()> on_sent;
  };

  // Parts of a plain link that one call of the kernel takes. Behind the last segment of a call TCP
  // sends a short one, which over loopback costs as much as a long one: with calls of 256 KiB a
  // message of 2 MiB took 1.6 times as long.
  static constexpr size_t kPlainPartsMax = 4;

  // Whole frames, ready to be sent.
  struct Piece {
    // Holds a sealed part, small frames, or the headers of plain parts, which are sent from the
    // payload itself.
    std::unique_ptr<std::byte[]> buffer;
    std::array<iovec, 2 * kPlainPartsMax> left{};  // not sent yet
    std::function<void()> on_sent;                 // of the message whose last part this has
    size_t bytes_left() const;
  };

  bool Prepare(Piece& piece);
  void PrepareFrames(Piece& piece);
  void PrepareParts(Piece& piece);
  size_t Put(const StreamFrame& head, std::span<const std::byte> body, std::byte* out);
  static void Sent(Piece& piece, size_t bytes);

  std::optional<FrameSeal> seal_;
  std::deque<Frame> frames_;
  std::deque<Message> messages_;
  Piece current_;
  Piece next_;  // sealed while the connection takes no bytes
};

}  // namespace penstock
