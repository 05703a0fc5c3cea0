#include "kvstore/wire/stream/stream_output.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace penstock {
namespace {

constexpr size_t kBufferBytes = kStreamFrameBytes + kStreamPartBytes + kSealTagBytes;
// The largest body of a frame that is not a part.
constexpr size_t kSmallBodyMax = WireLink::kHeaderMax + WireLink::kEagerMax;
// Pieces sent before others get their turn.
constexpr int kPiecesPerTurn = 4;

}  // namespace

size_t StreamOutput::Piece::bytes_left() const {
  size_t bytes = 0;
  for (const iovec& part : left) bytes += part.iov_len;
  return bytes;
}

StreamOutput::StreamOutput(const std::string& secret, StreamDirection direction) {
  if (!secret.empty()) seal_.emplace(secret, direction);
}

void StreamOutput::Begin(const StreamHello& hello) {
  current_.buffer = std::make_unique_for_overwrite<std::byte[]>(kBufferBytes);
  std::memcpy(current_.buffer.get(), &hello, sizeof(hello));
  current_.left[0] = {.iov_base = current_.buffer.get(), .iov_len = sizeof(hello)};
}

void StreamOutput::Add(const StreamFrame& frame, std::vector<std::byte> body) {
  frames_.push_back({.head = frame, .body = std::move(body)});
}

void StreamOutput::AddParts(uint64_t id, std::span<const std::byte> payload,
                            std::function<void()> on_sent) {
  messages_.push_back({.id = id, .payload = payload, .offset = 0, .on_sent = std::move(on_sent)});
}

absl::StatusOr<StreamOutput::State> StreamOutput::Write(int fd) {
  for (int i = 0; i < kPiecesPerTurn; ++i) {
    if (current_.bytes_left() == 0) std::swap(current_, next_);
    if (current_.bytes_left() == 0 && !Prepare(current_)) return State::kIdle;
    msghdr message{};
    message.msg_iov = current_.left.data();
    message.msg_iovlen = current_.left.size();
    const ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (seal_ && next_.bytes_left() == 0) Prepare(next_);
      return State::kBlocked;
    }
    if (sent < 0) return Unavailable("the peer is gone ({})", std::strerror(errno));
    Sent(current_, static_cast<size_t>(sent));
  }
  return idle() ? State::kIdle : State::kMore;
}

void StreamOutput::Sent(Piece& piece, size_t bytes) {
  for (iovec& part : piece.left) {
    const size_t of_part = std::min(bytes, part.iov_len);
    part.iov_base = static_cast<std::byte*>(part.iov_base) + of_part;
    part.iov_len -= of_part;
    bytes -= of_part;
  }
  if (piece.bytes_left() == 0 && piece.on_sent) std::exchange(piece.on_sent, nullptr)();
}

bool StreamOutput::Prepare(Piece& piece) {
  if (frames_.empty() && messages_.empty()) return false;
  if (piece.buffer == nullptr) {
    piece.buffer = std::make_unique_for_overwrite<std::byte[]>(kBufferBytes);
  }
  if (frames_.empty()) {
    PrepareParts(piece);
  } else {
    PrepareFrames(piece);
  }
  return true;
}

// Puts as many small frames into one piece as there is room for.
void StreamOutput::PrepareFrames(Piece& piece) {
  size_t used = 0;
  while (!frames_.empty() &&
         used + kStreamFrameBytes + kSmallBodyMax + kSealTagBytes <= kBufferBytes) {
    const Frame& frame = frames_.front();
    used += Put(frame.head, frame.body, piece.buffer.get() + used);
    frames_.pop_front();
  }
  piece.left = {iovec{.iov_base = piece.buffer.get(), .iov_len = used}};
}

// One part of the first message if it is to be sealed, else several.
void StreamOutput::PrepareParts(Piece& piece) {
  Message& message = messages_.front();
  const size_t parts = seal_ ? 1 : kPlainPartsMax;
  std::byte* out = piece.buffer.get();
  piece.left = {};
  for (size_t i = 0; i < parts && message.offset < message.payload.size(); ++i) {
    const size_t bytes = std::min(kStreamPartBytes, message.payload.size() - message.offset);
    const std::span<const std::byte> body = message.payload.subspan(message.offset, bytes);
    const StreamFrame head{.kind = StreamFrame::Kind::kPart,
                           .body_bytes = static_cast<uint32_t>(bytes),
                           .id = message.id,
                           .value = message.offset};
    iovec& first = piece.left[2 * i];
    if (seal_) {
      first = {.iov_base = out, .iov_len = Put(head, body, out)};
    } else {
      std::memcpy(out, &head, sizeof(head));
      first = {.iov_base = out, .iov_len = sizeof(head)};
      piece.left[2 * i + 1] = {.iov_base = const_cast<std::byte*>(body.data()),
                               .iov_len = body.size()};
    }
    out += first.iov_len;
    message.offset += bytes;
  }
  if (message.offset < message.payload.size()) return;
  piece.on_sent = std::move(message.on_sent);
  messages_.pop_front();
}

// Writes a whole frame to `out`; returns its size.
size_t StreamOutput::Put(const StreamFrame& head, std::span<const std::byte> body, std::byte* out) {
  std::memcpy(out, &head, sizeof(head));
  std::byte* const at = out + sizeof(head);
  if (seal_) {
    seal_->Seal({out, sizeof(head)}, body, at,
                std::span<std::byte, kSealTagBytes>(at + body.size(), kSealTagBytes));
    return sizeof(head) + body.size() + kSealTagBytes;
  }
  std::copy(body.begin(), body.end(), at);
  return sizeof(head) + body.size();
}

void StreamOutput::Clear() {
  frames_.clear();
  messages_.clear();
  current_ = {};
  next_ = {};
}

}  // namespace penstock
