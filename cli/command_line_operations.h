#pragma once

#include "cli/options.h"

namespace CLI {
class App;
}

namespace penstock {

// The options of commands for those who run clusters.
void AddPlan(CLI::App& app, PlanOptions& plan);
void AddTop(CLI::App& app, TopOptions& top);
// --ca, --cert and --key. `host`: whom the CA is of, e.g. "of an https:// endpoint".
void AddTls(CLI::App& command, TlsOptions& tls, const std::string& host);
void AddAdmin(CLI::App& app, AdminOptions& admin);
CLI::App& AddTrace(CLI::App& app, TraceOptions& trace);
void AddHealth(CLI::App& app, HealthOptions& health);

}  // namespace penstock
