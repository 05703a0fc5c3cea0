#pragma once

#include "cli/options.h"

namespace CLI {
class App;
}

namespace penstock {

// The options of commands about where prompts go. explain's endpoint is the caller's to add.
void AddSimulate(CLI::App& app, SimulateCommand& simulate);
CLI::App& AddExplain(CLI::App& app, ExplainOptions& explain);

}  // namespace penstock
