#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/shell/tls_options.h"

namespace penstock {

class CommandLine;

// Absent: the server's default.
struct KvPolicyOptions {
  std::string policy = {};
  std::string keep_marker = {};
};

struct SamplingOptions {
  std::optional<uint32_t> max_tokens = {};
  std::optional<float> temperature = {};
  std::optional<float> top_p = {};
  std::optional<uint32_t> top_k = {};
  std::optional<float> min_p = {};
  std::optional<int64_t> seed = {};
  std::vector<std::string> stop = {};
  KvPolicyOptions kv = {};
};

// How a command calls a router.
struct RouterOptions {
  std::string endpoint = "127.0.0.1:8090";
  TlsOptions tls = {};
  std::string api_key = {};  // empty: none is sent
};

struct GenerateOptions {
  RouterOptions router;
  std::string model;
  std::string prompt;  // "-" reads standard input
  SamplingOptions sampling;
  uint32_t choices = 1;
  bool json = false;
  bool stats = false;
};

struct ChatOptions {
  RouterOptions router;
  std::string model;
  std::string system;
  SamplingOptions sampling;
  bool json = false;
  bool stats = false;
};

struct TraceOptions {
  RouterOptions router;
  std::string model;
  std::string prompt;
  SamplingOptions sampling;
  bool json = false;
};

struct ExplainOptions {
  RouterOptions router;
  std::string model;
  std::string prompt;
  uint32_t max_tokens = 1;
  KvPolicyOptions kv = {};
  bool json = false;
};

// The commands that call a router. Shutdown signals are blocked, and no other thread runs yet.
int Run(const GenerateOptions& options);
int Run(const ChatOptions& options);
int Run(const TraceOptions& options);
int Run(const ExplainOptions& options);

void AddClientCommands(CommandLine& line);

}  // namespace penstock
