#include "base/tls/tls_metrics.h"

#include <utility>

namespace penstock {

void AddCertificateMetric(MetricsRegistry& registry, const std::string& certificate,
                          std::shared_ptr<TlsIdentity> identity) {
  prometheus::Gauge& expiry =
      registry.Gauge("penstock_tls_certificate_expiry_timestamp_seconds",
                     "Expiry of the served certificate, Unix time; 0: no certificate.",
                     {{"certificate", certificate}});
  if (identity == nullptr) return;
  registry.BeforeScrape([&expiry, identity = std::move(identity)] {
    expiry.Set(static_cast<double>(identity->ExpiresUnixSeconds()));
  });
}

}  // namespace penstock
