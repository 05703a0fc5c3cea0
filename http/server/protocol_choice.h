#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "http/protocol.h"

namespace penstock {

// What a port speaks.
enum class Protocols { kHttp1, kHttp1And2, kHttp2 };

// The names of those in TLS's ALPN, the preferred one first.
std::vector<std::string> AlpnNames(Protocols allowed);

// What a client is told whose connection is not taken: 503, or GOAWAY with `why` for its log.
std::string RefusalBytes(Protocols allowed, HttpHandler& handler, const std::string& why);

// The protocol of a new connection. Clients show it by their first bytes, in the clear and when
// they have agreed on it by TLS. Arguments as for the protocols.
std::unique_ptr<Protocol> ChooseProtocol(Protocols allowed, EdgeContext& context,
                                         std::function<void()> wake);

}  // namespace penstock
