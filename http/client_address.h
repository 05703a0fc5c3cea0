#pragma once

#include <sys/socket.h>

#include <string>

namespace penstock {

// Names the client behind an address, to count what it occupies: an IPv4 address, or the /64 prefix
// of an IPv6 address, because one host usually has all addresses of a prefix. Pure.
std::string ClientOf(const sockaddr_storage& address);

}  // namespace penstock
