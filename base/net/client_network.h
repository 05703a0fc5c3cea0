#pragma once

#include <sys/socket.h>

#include <string>

namespace penstock {

// Names the network of a client, to count what it occupies: an IPv4 address, also one that is
// mapped into IPv6, or the /64 prefix of an IPv6 address, because one host usually has all
// addresses of a prefix. Empty for other addresses. Pure.
std::string ClientNetwork(const sockaddr_storage& address);

}  // namespace penstock
