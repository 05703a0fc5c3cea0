#include "worker/events/zmtp_peer.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace penstock {
namespace {

constexpr size_t kGreetingBytes = 64;
constexpr uint8_t kMore = 1, kLong = 2, kCommand = 4;
constexpr size_t kMechanismAt = 12, kMechanismBytes = 20;

// The last byte of the signature, and whatever lies between it and the first, carries ZMTP 1.0's
// length, which nobody reads here.
std::string OurGreeting() {
  std::string greeting(kGreetingBytes, '\0');
  greeting[0] = '\xff';
  greeting[9] = '\x7f';
  greeting[10] = 3;
  greeting.replace(kMechanismAt, 4, "NULL");
  return greeting;
}

uint64_t BigEndianIn(std::string_view bytes) {
  uint64_t value = 0;
  for (const char byte : bytes) value = value << 8 | static_cast<uint8_t>(byte);
  return value;
}

void AppendBigEndian(std::string& out, uint64_t value, int bytes) {
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) {
    out.push_back(static_cast<char>(value >> shift & 0xff));
  }
}

bool EqualsIgnoringCase(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) ==
           std::tolower(static_cast<unsigned char>(y));
  });
}

// Takes `count` bytes from the front of `bytes`; nullopt if there are fewer.
std::optional<std::string_view> TakeFront(std::string_view& bytes, uint64_t count) {
  if (bytes.size() < count) return std::nullopt;
  const std::string_view front = bytes.substr(0, count);
  bytes.remove_prefix(count);
  return front;
}

// The value of a property in READY's list of (1 byte of length, name, 4 bytes of length, value).
absl::StatusOr<std::string> PropertyIn(std::string_view list, std::string_view wanted) {
  while (!list.empty()) {
    const auto name_bytes = static_cast<uint8_t>(list.front());
    list.remove_prefix(1);
    const auto name = TakeFront(list, name_bytes);
    const auto value_bytes = name ? TakeFront(list, 4) : std::nullopt;
    const auto value = value_bytes ? TakeFront(list, BigEndianIn(*value_bytes)) : std::nullopt;
    if (!value) return InvalidArgument("a property of READY is longer than READY");
    if (EqualsIgnoringCase(*name, wanted)) return std::string(*value);
  }
  return InvalidArgument("READY names no {}", wanted);
}

std::string Property(std::string_view name, std::string_view value) {
  std::string bytes(1, static_cast<char>(name.size()));
  bytes += name;
  AppendBigEndian(bytes, value.size(), 4);
  return bytes.append(value);
}

void AppendFrame(std::string& out, uint8_t flags, std::string_view body) {
  const bool is_long = body.size() > 0xff;
  out.push_back(static_cast<char>(flags | (is_long ? kLong : 0)));
  AppendBigEndian(out, body.size(), is_long ? 8 : 1);
  out += body;
}

}  // namespace

void AppendZmtpFrame(std::string& out, std::string_view body, bool more) {
  AppendFrame(out, more ? kMore : 0, body);
}

void AppendZmtpSequence(std::string& out, uint64_t sequence, bool more) {
  std::string body;
  AppendBigEndian(body, sequence, 8);
  AppendZmtpFrame(out, body, more);
}

ZmtpPeer::ZmtpPeer() : output_(OurGreeting()) {}

absl::Status ZmtpPeer::Take(std::string_view bytes) {
  input_ += bytes;
  if (!greeted_) {
    RETURN_IF_ERROR(CheckGreeting());
    if (input_.size() < kGreetingBytes) return absl::OkStatus();
    input_.erase(0, kGreetingBytes);
    greeted_ = true;
  }
  std::string_view rest = input_;
  while (true) {
    size_t size = 0;
    ASSIGN_OR_RETURN(const std::optional<Frame> frame, FrameIn(rest, &size));
    if (!frame) break;
    RETURN_IF_ERROR(OnFrame(*frame));
    rest.remove_prefix(size);
  }
  input_.erase(0, input_.size() - rest.size());
  return absl::OkStatus();
}

// Of as much as is here: whoever speaks another protocol is refused with its first byte.
absl::Status ZmtpPeer::CheckGreeting() const {
  const auto is = [this](size_t at, auto good) {
    return input_.size() <= at || good(static_cast<uint8_t>(input_[at]));
  };
  if (!is(0, [](uint8_t byte) { return byte == 0xff; }) ||
      !is(9, [](uint8_t byte) { return byte == 0x7f; })) {
    return InvalidArgument("the peer does not speak ZMTP");
  }
  if (!is(10, [](uint8_t major) { return major >= 3; })) {
    return InvalidArgument("the peer speaks a ZMTP before 3.0");
  }
  std::string null(kMechanismBytes, '\0');
  null.replace(0, 4, "NULL");
  const std::string_view here =
      std::string_view(input_).substr(std::min(input_.size(), kMechanismAt));
  const std::string_view mechanism = here.substr(0, kMechanismBytes);
  if (mechanism != std::string_view(null).substr(0, mechanism.size())) {
    return InvalidArgument("the peer's security mechanism is not NULL");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<ZmtpPeer::Frame>> ZmtpPeer::FrameIn(std::string_view input,
                                                                 size_t* size) {
  if (input.empty()) return std::optional<Frame>();
  const auto flags = static_cast<uint8_t>(input.front());
  const bool command = (flags & kCommand) != 0;
  if ((flags & ~(kMore | kLong | kCommand)) != 0 || (command && (flags & kMore) != 0)) {
    return InvalidArgument("a frame has the flags {:#x}", flags);
  }
  const size_t length_bytes = (flags & kLong) != 0 ? 8 : 1;
  if (input.size() < 1 + length_bytes) return std::optional<Frame>();
  const uint64_t length = BigEndianIn(input.substr(1, length_bytes));
  const size_t max = command ? kCommandBytesMax : kFrameBytesMax;
  if (length > max) {
    return ResourceExhausted("a frame has {} bytes; at most {} are allowed", length, max);
  }
  if (input.size() < 1 + length_bytes + length) return std::optional<Frame>();
  *size = 1 + length_bytes + length;
  return std::optional<Frame>({.flags = flags, .body = input.substr(1 + length_bytes, length)});
}

absl::Status ZmtpPeer::OnFrame(const Frame& frame) {
  if ((frame.flags & kCommand) != 0) return OnCommand(frame.body);
  if (kind_ == Kind::kUnknown) return InvalidArgument("a message came before READY");
  return OnMessage(frame);
}

absl::Status ZmtpPeer::OnCommand(std::string_view body) {
  const auto name_bytes = TakeFront(body, 1);
  const auto name =
      name_bytes ? TakeFront(body, static_cast<uint8_t>(name_bytes->front())) : std::nullopt;
  if (!name) return InvalidArgument("a command has no name");
  if (*name == "READY" && kind_ == Kind::kUnknown) return OnReady(body);
  if (*name == "PING" && kind_ != Kind::kUnknown && body.size() >= 2) {
    // The answer to (time to live, context) is the context.
    SendCommand("PONG", body.substr(2));
    return absl::OkStatus();
  }
  if (*name == "PONG" && kind_ != Kind::kUnknown) return absl::OkStatus();
  return InvalidArgument("an unexpected command came");
}

absl::Status ZmtpPeer::OnReady(std::string_view properties) {
  ASSIGN_OR_RETURN(const std::string type, PropertyIn(properties, "Socket-Type"));
  if (type == "SUB" || type == "XSUB") {
    kind_ = Kind::kSubscriber;
  } else if (type == "REQ" || type == "DEALER") {
    kind_ = Kind::kRequester;
  } else {
    return InvalidArgument("the peer's socket is neither SUB, XSUB, REQ nor DEALER");
  }
  SendCommand("READY", Property("Socket-Type", kind_ == Kind::kSubscriber ? "PUB" : "ROUTER"));
  return absl::OkStatus();
}

void ZmtpPeer::SendCommand(std::string_view name, std::string_view rest) {
  std::string body(1, static_cast<char>(name.size()));
  body.append(name).append(rest);
  AppendFrame(output_, kCommand, body);
}

// A request is an empty frame and a frame with 8 bytes.
absl::Status ZmtpPeer::OnMessage(const Frame& frame) {
  const bool more = (frame.flags & kMore) != 0;
  if (kind_ == Kind::kSubscriber) {
    if (more) return InvalidArgument("a subscription has two frames");
    return OnSubscription(frame.body);
  }
  if (!delimited_) {
    delimited_ = more && frame.body.empty();
    return delimited_ ? absl::OkStatus() : InvalidArgument("a request has no empty first frame");
  }
  if (more || frame.body.size() != 8) return InvalidArgument("a request is not of 8 bytes");
  if (requests_.size() >= kRequestsMax) {
    return ResourceExhausted("{} requests wait; no more are allowed", requests_.size());
  }
  requests_.push_back(BigEndianIn(frame.body));
  delimited_ = false;
  return absl::OkStatus();
}

// One byte, 1 to subscribe and 0 to end it, and the topic's prefix. A prefix may be subscribed to
// twice, and must then be ended twice.
absl::Status ZmtpPeer::OnSubscription(std::string_view body) {
  if (body.empty() || static_cast<uint8_t>(body.front()) > 1) {
    return InvalidArgument("a message of a subscriber is no subscription");
  }
  const std::string topic(body.substr(1));
  if (body.front() == 0) {
    const auto found = std::find(topics_.begin(), topics_.end(), topic);
    if (found != topics_.end()) topics_.erase(found);
    return absl::OkStatus();
  }
  if (topics_.size() >= kTopicsMax) {
    return ResourceExhausted("a peer has {} subscriptions; no more are allowed", topics_.size());
  }
  topics_.push_back(topic);
  return absl::OkStatus();
}

bool ZmtpPeer::Subscribes(std::string_view topic) const {
  return std::any_of(topics_.begin(), topics_.end(), [&](const std::string& prefix) {
    return topic.substr(0, prefix.size()) == prefix;
  });
}

std::optional<uint64_t> ZmtpPeer::TakeRequest() {
  if (requests_.empty()) return std::nullopt;
  const uint64_t first = requests_.front();
  requests_.erase(requests_.begin());
  return first;
}

}  // namespace penstock
