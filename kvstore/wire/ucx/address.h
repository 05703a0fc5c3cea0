#pragma once

#include <string>

#include "base/status.h"

namespace penstock {

// What Wire::address() says to a peer; printable, so that it may stand in a log.
struct WireAddress {
  std::string instance;   // random; names this wire and no later one on the same port
  std::string host;       // the kernel's boot id; empty when unknown
  std::string same_host;  // SameHostReceiver::name(); empty without a same-host lane
  std::string endpoint;   // "ip:port" or "[ip]:port" of the UCX listener; empty without
  std::string nccl;       // its version; empty, and not in the text, without
  bool operator==(const WireAddress&) const = default;
};

std::string FormatWireAddress(const WireAddress& address);
// INVALID_ARGUMENT says what is wrong. Bounded: reads at most 4 KiB, fields of at most 128 bytes.
absl::StatusOr<WireAddress> ParseWireAddress(const std::string& text);

// This machine's boot id, which no two machines share; empty when the kernel does not say. In a
// file of its own, for which tests have another, to be on several hosts.
std::string BootId();
// 128 random bits in hexadecimal.
std::string RandomName();

}  // namespace penstock
