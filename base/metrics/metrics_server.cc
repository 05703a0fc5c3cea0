#include <prometheus/exposer.h>

#include <exception>

#include "base/lifecycle.h"
#include "base/metrics/metrics.h"

namespace penstock {

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    const std::string& listen, const MetricsRegistry& registry) {
  ASSIGN_OR_RETURN(HostPort address, ParseHostPort(listen));
  try {
    auto exposer = std::make_unique<prometheus::Exposer>(FormatHostPort(address), 2);
    exposer->RegisterCollectable(registry.collectable());
    address.port = static_cast<uint16_t>(exposer->GetListeningPorts().at(0));
    return std::unique_ptr<MetricsServer>(
        new MetricsServer(std::move(exposer), FormatHostPort(address)));
  } catch (const std::exception&) {  // the library throws if it cannot listen
    return ResourceExhausted(
        "cannot serve metrics at {}: is the port taken, or the address not this machine's?",
        listen);
  }
}

MetricsServer::MetricsServer(std::unique_ptr<prometheus::Exposer> exposer, std::string endpoint)
    : exposer_(std::move(exposer)), endpoint_(std::move(endpoint)) {}

MetricsServer::~MetricsServer() = default;

}  // namespace penstock
