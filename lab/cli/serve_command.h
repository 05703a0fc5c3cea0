#pragma once

namespace CLI {
class App;
}

namespace penstock {

class CommandLine;

// `bench serve`
void AddBenchServe(CommandLine& line, CLI::App& bench);

}  // namespace penstock
