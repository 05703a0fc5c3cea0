#include "kvstore/wire/net/address.h"

#include <algorithm>
#include <array>
#include <random>
#include <string_view>

namespace penstock {
namespace {

constexpr std::string_view kPrefix = "penstock-wire-2";
constexpr std::string_view kNccl = " nccl=";
constexpr size_t kAddressMax = 4096;
constexpr size_t kFieldMax = 128;

bool IsPlain(std::string_view value) {
  return std::all_of(value.begin(), value.end(), [](char c) { return c > ' ' && c < '\x7f'; });
}

}  // namespace

std::string FormatWireAddress(const WireAddress& address) {
  std::string text = fmt::format("{} instance={} host={} same_host={} endpoint={} link={} tls={}",
                                 kPrefix, address.instance, address.host, address.same_host,
                                 address.endpoint, address.link, address.tls);
  if (!address.nccl.empty()) text += fmt::format("{}{}", kNccl, address.nccl);
  return text;
}

absl::StatusOr<WireAddress> ParseWireAddress(const std::string& text) {
  if (text.size() > kAddressMax) {
    return InvalidArgument("wire address: {} bytes, the limit is {}", text.size(), kAddressMax);
  }
  std::string_view rest = text;
  if (!rest.starts_with(kPrefix)) {
    return InvalidArgument(
        "wire address: does not start with {}; the peer runs another version of Penstock", kPrefix);
  }
  rest.remove_prefix(kPrefix.size());
  WireAddress address;
  using Field = std::pair<std::string_view, std::string WireAddress::*>;
  static constexpr std::array<Field, 7> kFields = {{{" instance=", &WireAddress::instance},
                                                    {" host=", &WireAddress::host},
                                                    {" same_host=", &WireAddress::same_host},
                                                    {" endpoint=", &WireAddress::endpoint},
                                                    {" link=", &WireAddress::link},
                                                    {" tls=", &WireAddress::tls},
                                                    {kNccl, &WireAddress::nccl}}};
  for (const auto& [key, member] : kFields) {
    if (key == kNccl && rest.empty()) break;
    if (!rest.starts_with(key)) return InvalidArgument("wire address: field{} is missing", key);
    rest.remove_prefix(key.size());
    const std::string_view value = rest.substr(0, rest.find(' '));
    if (value.size() > kFieldMax || !IsPlain(value)) {
      return InvalidArgument("wire address: field{} of {} bytes, the limit is {} printable ones",
                             key, value.size(), kFieldMax);
    }
    if (key == kNccl && value.empty()) {
      return InvalidArgument("wire address: field{} is empty", key);
    }
    address.*member = value;
    rest.remove_prefix(value.size());
  }
  if (!rest.empty()) return InvalidArgument("wire address: {} bytes too many", rest.size());
  return address;
}

std::string RandomName() {
  std::random_device random;
  std::string name;
  for (int i = 0; i < 4; ++i) name += fmt::format("{:08x}", random());
  return name;
}

}  // namespace penstock
