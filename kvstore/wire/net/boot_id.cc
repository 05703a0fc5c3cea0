#include <algorithm>
#include <fstream>

#include "kvstore/wire/net/address.h"

namespace penstock {

std::string BootId() {
  constexpr size_t kLongest = 128;  // limit of a field of an address
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  const bool plain =
      std::all_of(id.begin(), id.end(), [](char c) { return c > ' ' && c < '\x7f'; });
  return plain && id.size() <= kLongest ? id : "";
}

}  // namespace penstock
