// For emulated workers, in the place of kvstore/wire/net/boot_id.cc: with PENSTOCK_TEST_HOSTS in
// the environment every process is a host of its own.

#include <unistd.h>

#include <cstdlib>

#include "kvstore/wire/net/address.h"

namespace penstock {

std::string BootId() {
  if (std::getenv("PENSTOCK_TEST_HOSTS") == nullptr) return "one-host";
  return fmt::format("host-{}", getpid());
}

}  // namespace penstock
