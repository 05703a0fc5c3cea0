#include "base/net/client_network.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace penstock {

std::string ClientNetwork(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, text, sizeof(text));
    return text;
  }
  if (address.ss_family != AF_INET6) return "";
  in6_addr host = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&host)) {
    inet_ntop(AF_INET, host.s6_addr + 12, text, sizeof(text));
    return text;
  }
  std::fill(host.s6_addr + 8, host.s6_addr + 16, uint8_t{0});
  inet_ntop(AF_INET6, &host, text, sizeof(text));
  return std::string(text) + "/64";
}

}  // namespace penstock
