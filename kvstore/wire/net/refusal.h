#pragma once

#include <functional>

namespace penstock {

// Why a wire has turned a peer away, for metrics.
enum class WireRefusal {
  kGreeting,     // it did not say hello in time
  kCertificate,  // the TLS handshake failed
  kLimit,        // there are as many connections or lanes as there may be
  kProtocol,     // it said something else than it must
  kTag,          // a frame's seal was broken
};
inline constexpr int kWireRefusals = 5;

using OnWireRefusal = std::function<void(WireRefusal)>;

}  // namespace penstock
