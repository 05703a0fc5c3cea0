#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "http/protocol.h"

namespace penstock {

// The protocols that a port accepts.
enum class Protocols { kHttp1, kHttp1And2, kHttp2 };

// Their ALPN names (RFC 7301), the preferred one first.
std::vector<std::string> AlpnNames(Protocols allowed);

// The bytes sent to a client whose connection is refused: a 503 response, or a GOAWAY with `why`
// for the client's log.
std::string RefusalBytes(Protocols allowed, HttpHandler& handler, const std::string& why);

// Creates the protocol of a new connection. The client's first bytes decide between HTTP/1.1 and
// HTTP/2, on plain and on TLS connections. Arguments as for the protocols.
std::unique_ptr<Protocol> ChooseProtocol(Protocols allowed, EdgeContext& context,
                                         std::function<void()> wake, const std::string& client);

}  // namespace penstock
