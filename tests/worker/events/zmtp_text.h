#pragma once

#include <string>

#include "worker/events/zmtp_peer.h"

namespace penstock {

// What a peer of ZeroMQ says, byte by byte as rfc.zeromq.org/spec/23 has it.
inline std::string Greeting(int major = 3, int minor = 1, const std::string& mechanism = "NULL") {
  std::string bytes("\xff\0\0\0\0\0\0\0\1\x7f", 10);
  bytes += static_cast<char>(major);
  bytes += static_cast<char>(minor);
  bytes += mechanism + std::string(20 - mechanism.size(), '\0');
  return bytes + std::string(32, '\0');
}

inline std::string Command(const std::string& body) {
  return std::string("\4") + static_cast<char>(body.size()) + body;
}

inline std::string Ready(const std::string& type) {
  return Command(std::string("\5READY\13Socket-Type\0\0\0", 21) + static_cast<char>(type.size()) +
                 type + std::string("\10Identity\0\0\0\0", 13));
}

inline std::string Subscription(const std::string& topic, bool begin = true) {
  std::string frame;
  AppendZmtpFrame(frame, (begin ? '\1' : '\0') + topic, /*more=*/false);
  return frame;
}

inline std::string Request(uint64_t first) {
  std::string frames;
  AppendZmtpFrame(frames, "", /*more=*/true);
  AppendZmtpSequence(frames, first, /*more=*/false);
  return frames;
}

}  // namespace penstock
