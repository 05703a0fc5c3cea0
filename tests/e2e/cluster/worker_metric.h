#pragma once

#include <string>

#include "tests/e2e/cluster/cluster.h"
#include "tests/http/http_client.h"

namespace penstock {

// The value of a worker's metric without labels; -1: it has none.
inline double MetricOf(const WorkerProcess& worker, const std::string& name) {
  const std::string text = "\n" + Ask(worker.State()->metrics_endpoint(), "/metrics").body;
  const size_t at = text.find("\n" + name + " ");
  return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
}

}  // namespace penstock
