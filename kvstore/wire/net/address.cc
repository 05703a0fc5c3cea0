#include "kvstore/wire/net/address.h"

#include <algorithm>
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

// The text of `tls`. Empty without lanes between hosts.
std::string_view TlsText(const WireAddress& address) {
  if (address.link.empty()) return "";
  return address.tls ? "1" : "0";
}

// Takes the next field from `rest`, where `key` must be.
absl::StatusOr<std::string> TakeField(std::string_view key, std::string_view& rest) {
  if (!rest.starts_with(key)) return InvalidArgument("wire address: field{} is missing", key);
  rest.remove_prefix(key.size());
  const std::string_view value = rest.substr(0, rest.find(' '));
  if (value.size() > kFieldMax || !IsPlain(value)) {
    return InvalidArgument("wire address: field{} of {} bytes, the limit is {} printable ones", key,
                           value.size(), kFieldMax);
  }
  rest.remove_prefix(value.size());
  return std::string(value);
}

}  // namespace

std::string FormatWireAddress(const WireAddress& address) {
  std::string text = fmt::format("{} instance={} host={} same_host={} endpoint={} link={} tls={}",
                                 kPrefix, address.instance, address.host, address.same_host,
                                 address.endpoint, address.link, TlsText(address));
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
  ASSIGN_OR_RETURN(address.instance, TakeField(" instance=", rest));
  ASSIGN_OR_RETURN(address.host, TakeField(" host=", rest));
  ASSIGN_OR_RETURN(address.same_host, TakeField(" same_host=", rest));
  ASSIGN_OR_RETURN(address.endpoint, TakeField(" endpoint=", rest));
  ASSIGN_OR_RETURN(address.link, TakeField(" link=", rest));
  ASSIGN_OR_RETURN(const std::string tls, TakeField(" tls=", rest));
  address.tls = tls == "1";
  if (tls != TlsText(address)) {
    return InvalidArgument("wire address: field tls= is \"{}\", must be {}", tls,
                           address.link.empty() ? "empty without link=" : "0 or 1");
  }
  if (!rest.empty()) {
    ASSIGN_OR_RETURN(address.nccl, TakeField(kNccl, rest));
    if (address.nccl.empty()) return InvalidArgument("wire address: field{} is empty", kNccl);
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
