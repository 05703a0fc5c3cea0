#pragma once

#include "cli/options.h"

namespace CLI {
class App;
}

namespace penstock {

// The options of commands about how KV is compressed.
void AddCalibrate(CLI::App& app, CalibrateOptions& calibrate);
void AddEval(CLI::App& app, EvalOptions& eval);

}  // namespace penstock
