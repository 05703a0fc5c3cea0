#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/shell/tls_options.h"

namespace penstock {

class CommandLine;

struct TopOptions {
  std::string endpoint;              // a router's admin_listen
  std::vector<std::string> workers;  // not empty: these are asked instead
  TlsOptions tls;
  uint32_t every_ms = 1000;
  bool once = false;
  bool json = false;
};

struct HealthOptions {
  std::string endpoint;
  TlsOptions tls;
  std::string service;  // "" also says no while draining, "live" only when nothing moves
  uint32_t timeout_ms = 2000;
};

struct KvOptions {
  std::string what;   // inspect, stats, verify or flush
  std::string where;  // a directory, or the host:port of a worker
  TlsOptions tls;
  bool json = false;
};

struct AdminOptions {
  std::string endpoint;
  TlsOptions tls;
  std::string what;
  std::vector<std::string> arguments;  // of `what`
  uint32_t within_s = 30;              // of role
  bool force = false;                  // likewise
  bool json = false;
};

// The operators' commands. Shutdown signals are blocked, and no other thread runs yet.
int Run(const TopOptions& options);
int Run(const HealthOptions& options);
int Run(const KvOptions& options);
int Run(const AdminOptions& options);

void AddOperateCommands(CommandLine& line);

}  // namespace penstock
