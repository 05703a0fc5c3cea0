#include "base/net/client_network.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

namespace penstock {
namespace {

std::string NetworkOf(const char* host) {
  sockaddr_storage address{};
  auto& v4 = reinterpret_cast<sockaddr_in&>(address);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(address);
  if (inet_pton(AF_INET, host, &v4.sin_addr) == 1) {
    address.ss_family = AF_INET;
  } else {
    EXPECT_EQ(inet_pton(AF_INET6, host, &v6.sin6_addr), 1) << host;
    address.ss_family = AF_INET6;
  }
  v4.sin_port = htons(1234);
  return ClientNetwork(address);
}

TEST(ClientNetworkTest, IsAnAddressOfIpv4) {
  EXPECT_EQ(NetworkOf("192.0.2.7"), "192.0.2.7");
  EXPECT_NE(NetworkOf("192.0.2.7"), NetworkOf("192.0.2.8"));
  EXPECT_EQ(NetworkOf("::ffff:192.0.2.7"), "192.0.2.7") << "the same client at a dual-stack socket";
}

TEST(ClientNetworkTest, IsAPrefixOfIpv6) {
  EXPECT_EQ(NetworkOf("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
  EXPECT_EQ(NetworkOf("2001:db8:1:2::9"), "2001:db8:1:2::/64");
  EXPECT_NE(NetworkOf("2001:db8:1:3::9"), NetworkOf("2001:db8:1:2::9"));
  EXPECT_EQ(NetworkOf("::1"), "::/64");
}

TEST(ClientNetworkTest, IsEmptyForOtherAddresses) {
  sockaddr_storage local{};
  local.ss_family = AF_UNIX;
  EXPECT_EQ(ClientNetwork(local), "");
}

}  // namespace
}  // namespace penstock
