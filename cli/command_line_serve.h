#pragma once

#include "cli/options.h"

namespace CLI {
class App;
}

namespace penstock {

// `serve` below `bench`.
void AddBenchServe(CLI::App& bench, BenchServeOptions& serve);

}  // namespace penstock
