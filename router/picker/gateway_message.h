#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "http/http_message.h"
#include "proto/ext_proc.pb.h"

namespace penstock {

namespace ext_proc = envoy::service::ext_proc::v3;

// Room router/picker: the endpoint picker of the Gateway API Inference Extension, over Envoy's
// external processing protocol. A gateway asks it, for each request, which endpoint of an
// InferencePool should serve it; the endpoints are routers. It knows the inference core and the
// HTTP APIs' parsers; it may not know workers or sessions, and it generates nothing.
// Source: github.com/kubernetes-sigs/gateway-api-inference-extension,
// docs/proposals/004-endpoint-picker-protocol

// The header and the metadata key that name the endpoint to the gateway.
inline constexpr char kDestinationKey[] = "x-gateway-destination-endpoint";
inline constexpr char kDestinationNamespace[] = "envoy.lb";

// The head of the client's request, from the gateway's pseudo-headers and headers; or the error in
// it. Pure.
std::variant<HttpHead, HttpError> ReadHead(const ext_proc::HttpHeaders& headers,
                                           const HttpLimits& limits);

// The endpoints, as ip:port, that the gateway limits its choice to; nullopt: to the whole pool.
// Entries that are no strings are left out. Pure.
std::optional<std::vector<std::string>> SubsetOf(const ext_proc::ProcessingRequest& message);

// True if the subset has `endpoint`. Different spellings of an IPv6 address are equal. Pure.
bool Includes(const std::vector<std::string>& subset, const std::string& endpoint);

// `endpoint` as ip:port. INVALID_ARGUMENT, which begins with `flag`, if it is not an IP address of
// one host and a port: gateways send requests there. Pure.
absl::StatusOr<std::string> NamedEndpoint(const std::string& endpoint, std::string_view flag);

// The client's limit of the time to the first token, from the header x-slo-ttft-ms; nullopt: it
// gave none. INVALID_ARGUMENT if it is no number of milliseconds up to a day. Pure.
absl::StatusOr<std::optional<Duration>> FirstTokenLimitOf(const HttpHead& head);

}  // namespace penstock
