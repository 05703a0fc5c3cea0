#pragma once

#include <memory>
#include <string>

#include "base/metrics/metrics.h"
#include "base/tls/tls_identity.h"

namespace penstock {

// Adds penstock_tls_certificate_expiry_timestamp_seconds{certificate="cluster"} etc., in Unix time;
// 0 if `identity` is null or has no certificate.
void AddCertificateMetric(MetricsRegistry& registry, const std::string& certificate,
                          std::shared_ptr<TlsIdentity> identity);

}  // namespace penstock
