#pragma once

#include <string>

#include "base/status.h"

namespace penstock {

// The content of Wire::address(): printable text, so that it can appear in logs.
struct WireAddress {
  std::string instance;   // random; names this wire, not a later one on the same port
  std::string host;       // the kernel's boot id; empty when unknown
  std::string same_host;  // SameHostReceiver::name(); empty without a same-host lane
  std::string endpoint;   // "ip:port" or "[ip]:port" of the door; empty without lanes between hosts
  std::string link;       // what carries lanes between hosts: "stream" or "ucx"; empty without
  bool tls = false;       // between hosts, callers must show a certificate of the cluster
  std::string nccl;       // version of NCCL; empty, and omitted from the text, when there is none
  bool operator==(const WireAddress&) const = default;
};

std::string FormatWireAddress(const WireAddress& address);
// INVALID_ARGUMENT names the mistake. Accepts only what FormatWireAddress returns. Bounded: reads
// at most 4 KiB and fields of at most 128 bytes.
absl::StatusOr<WireAddress> ParseWireAddress(const std::string& text);

// This machine's boot id, which is unique to the machine; empty when the kernel has none. It has a
// source file of its own, which tests replace to simulate several hosts.
std::string BootId();
// 128 random bits in hexadecimal.
std::string RandomName();

}  // namespace penstock
