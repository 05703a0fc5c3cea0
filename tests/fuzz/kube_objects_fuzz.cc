// The answer of an API server: a Lease that is read comes back as it went, and nothing else than a
// bounded number is taken for replicas.
#include <cstdint>
#include <string>

#include "base/check.h"
#include "router/kubernetes/kube_objects.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto lease = penstock::ParseLease(text);
  if (lease.ok()) {
    const auto again = penstock::ParseLease(penstock::LeaseJson("autoscaling", *lease));
    PENSTOCK_CHECK(again.ok() && *again == *lease);
  }
  const auto replicas = penstock::ParseReplicas(text);
  if (replicas.ok()) PENSTOCK_CHECK(*replicas <= 1'000'000);
  return 0;
}
