#pragma once

#include <set>
#include <string>
#include <string_view>

namespace penstock::world {

// The name that stands for the fleet, with the port of every worker.
inline constexpr std::string_view kListedName = "workers.world:9000";
inline constexpr int kListedPort = 9000;

// The addresses that the name has now. They are what getaddrinfo finds.
struct Listing {
  std::set<std::string> hosts;
  bool fails = false;  // the resolver does not answer
};
Listing& TheListing();

}  // namespace penstock::world
