#pragma once

#include <string>

#include "lab/load/summary.h"

namespace penstock {

// The description of a run in its report.
struct LoadDescription {
  std::string backend;  // "openai", "openai-chat" or "penstock-grpc"
  std::string model;
  std::string date;  // "20261122-014316"
  std::string workload;
  double rate = 0;  // infinite: all at once; 0: a closed loop or a trace
  double burstiness = 1;
  uint32_t concurrency = 0;  // 0: no limit
  uint32_t prompts = 0;      // sent
};

// One object with the names of vLLM's `bench serve` results; what those do not have comes after.
// `detailed`: also lists with a value a request, in the order in which they ended.
std::string LoadJson(const LoadDescription& description, const LoadOutcome& outcome,
                     const LoadSummary& summary, bool detailed);
std::string LoadText(const LoadSummary& summary);

// How the figures are spread, and throughput over time, as one SVG.
absl::Status WriteLoadPlot(const LoadDescription& description, const LoadOutcome& outcome,
                           const std::string& path);

}  // namespace penstock
