// The resolver of the world's machine, in the place of the system's.
#include "lab/world/machine/listing.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>

namespace penstock::world {

Listing& TheListing() {
  static Listing listing;
  return listing;
}

}  // namespace penstock::world

namespace {

struct Found {
  addrinfo info{};
  sockaddr_in address{};
};

}  // namespace

extern "C" int getaddrinfo(const char*, const char*, const addrinfo*, addrinfo** result) {
  const penstock::world::Listing& listing = penstock::world::TheListing();
  if (listing.fails) return EAI_AGAIN;
  if (listing.hosts.empty()) return EAI_NONAME;
  addrinfo* list = nullptr;
  for (const std::string& host : listing.hosts) {
    auto* const found = new Found;
    found->address.sin_family = AF_INET;
    inet_pton(AF_INET, host.c_str(), &found->address.sin_addr);
    found->info.ai_family = AF_INET;
    found->info.ai_addr = reinterpret_cast<sockaddr*>(&found->address);
    found->info.ai_addrlen = sizeof found->address;
    found->info.ai_next = list;
    list = &found->info;
  }
  *result = list;
  return 0;
}

// `info` is the first member of Found.
extern "C" void freeaddrinfo(addrinfo* list) noexcept {
  while (list != nullptr) {
    addrinfo* const next = list->ai_next;
    delete reinterpret_cast<Found*>(list);
    list = next;
  }
}
