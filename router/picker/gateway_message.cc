#include "router/picker/gateway_message.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>

#include "base/lifecycle.h"
#include "router/request/error_detail.h"

namespace penstock {
namespace {

constexpr char kSubsetNamespace[] = "envoy.lb.subset_hint";
constexpr char kSubsetKey[] = "x-gateway-destination-endpoint-subset";
constexpr char kFirstTokenLimit[] = "x-slo-ttft-ms";
constexpr uint32_t kFirstTokenLimitMaxMs = 86'400'000;

const std::string& ValueOf(const ext_proc::HeaderValue& header) {
  return header.raw_value().empty() ? header.value() : header.raw_value();
}

bool IsIpV6(const std::string& host) {
  in6_addr address{};
  return inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

// The bytes of an IPv6 address; any other host as it is.
std::string Canonical(const std::string& host) {
  in6_addr address{};
  if (inet_pton(AF_INET6, host.c_str(), &address) != 1) return host;
  return {reinterpret_cast<const char*>(&address), sizeof address};
}

bool SameEndpoint(const std::string& one, const std::string& other) {
  const auto a = ParseHostPort(one);
  const auto b = ParseHostPort(other);
  return a.ok() && b.ok() && a->port == b->port && Canonical(a->host) == Canonical(b->host);
}

}  // namespace

std::variant<HttpHead, HttpError> ReadHead(const ext_proc::HttpHeaders& headers,
                                           const HttpLimits& limits) {
  HttpHead head;
  std::string target;
  size_t bytes = 0;
  for (const ext_proc::HeaderValue& header : headers.headers().headers()) {
    const std::string& value = ValueOf(header);
    bytes += header.key().size() + value.size();
    if (bytes > limits.head_bytes) return HeadTooLarge(limits);
    if (header.key() == ":method") {
      head.method = value;
    } else if (header.key() == ":path") {
      target = value;
    } else if (!header.key().starts_with(':')) {
      if (head.headers.size() >= limits.headers) return TooManyHeaders(limits);
      head.headers.push_back({LowerCase(header.key()), value});
    }
  }
  if (auto error = ReadTarget(target, limits, head)) return *std::move(error);
  return head;
}

std::optional<std::vector<std::string>> SubsetOf(const ext_proc::ProcessingRequest& message) {
  const auto& namespaces = message.metadata_context().filter_metadata();
  const auto hint = namespaces.find(kSubsetNamespace);
  if (hint == namespaces.end()) return std::nullopt;
  const auto list = hint->second.fields().find(kSubsetKey);
  if (list == hint->second.fields().end()) return std::nullopt;
  std::vector<std::string> endpoints;
  for (const google::protobuf::Value& value : list->second.list_value().values()) {
    if (value.has_string_value()) endpoints.push_back(value.string_value());
  }
  return endpoints;
}

bool Includes(const std::vector<std::string>& subset, const std::string& endpoint) {
  return std::any_of(subset.begin(), subset.end(),
                     [&](const std::string& one) { return SameEndpoint(one, endpoint); });
}

absl::StatusOr<std::string> NamedEndpoint(const std::string& endpoint, std::string_view flag) {
  const auto address = ParseHostPort(endpoint);
  if (!address.ok()) return Annotate(address.status(), flag);
  in_addr v4{};
  const bool is_ip = inet_pton(AF_INET, address->host.c_str(), &v4) == 1 || IsIpV6(address->host);
  const bool is_any = Canonical(address->host) == Canonical("::") || address->host == "0.0.0.0";
  if (is_ip && !is_any) return FormatHostPort(*address);
  return InvalidArgument(
      "{}={} is not an address that gateways can send requests to: name this host's ip:port with "
      "endpoint_picker_names",
      flag, endpoint);
}

absl::StatusOr<std::optional<Duration>> FirstTokenLimitOf(const HttpHead& head) {
  const std::string* text = head.Find(kFirstTokenLimit);
  if (text == nullptr) return std::nullopt;
  double ms = 0;
  const char* const end = text->data() + text->size();
  const auto [rest, error] = std::from_chars(text->data(), end, ms);
  if (error == std::errc() && rest == end && ms > 0 && ms <= kFirstTokenLimitMaxMs) {
    return std::chrono::nanoseconds(std::max<int64_t>(static_cast<int64_t>(ms * 1e6), 1));
  }
  return BadField(kFirstTokenLimit, "is `{}`; it must be milliseconds above 0, up to {}",
                  ShownText(*text), kFirstTokenLimitMaxMs);
}

}  // namespace penstock
