#include "cli/programs.h"

#include "base/config/config_program.h"
#include "proto/config.pb.h"

namespace penstock {

// Names, summaries and defaults are those of the servers' own --help; a test compares them.
std::vector<Program> ProductPrograms(Program penstock) {
  return {std::move(penstock),
          DescribeServer({.name = "penstock-router",
                          .summary = "places prompts on workers and streams the answers"},
                         *v1::RouterConfig::descriptor()),
          DescribeServer({.name = "penstock-prefill",
                          .summary = "turns prompts into KV and pushes it to a decode worker"},
                         *v1::WorkerConfig::descriptor()),
          DescribeServer({.name = "penstock-decode",
                          .summary = "receives prefilled KV and streams tokens",
                          .defaults = {{"listen", "127.0.0.1:8092"}}},
                         *v1::WorkerConfig::descriptor())};
}

}  // namespace penstock
