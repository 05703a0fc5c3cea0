#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/shell/tls_options.h"

namespace penstock {

class CommandLine;

// Absent: the server's default.
struct SamplingOptions {
  std::optional<uint32_t> max_tokens = {};
  std::optional<float> temperature = {};
  std::optional<float> top_p = {};
  std::optional<uint32_t> top_k = {};
  std::optional<float> min_p = {};
  std::optional<int64_t> seed = {};
  std::vector<std::string> stop = {};
  std::string kv_policy = {};  // empty: the server's default
};

struct GenerateOptions {
  std::string endpoint;
  TlsOptions tls;
  std::string model;
  std::string prompt;  // "-" reads standard input
  SamplingOptions sampling;
  uint32_t choices = 1;
  bool json = false;
  bool stats = false;
};

struct ChatOptions {
  std::string endpoint;
  TlsOptions tls;
  std::string model;
  std::string system;
  SamplingOptions sampling;
  bool json = false;
  bool stats = false;
};

struct TraceOptions {
  std::string endpoint;
  TlsOptions tls;
  std::string model;
  std::string prompt;
  SamplingOptions sampling;
};

struct ExplainOptions {
  std::string endpoint;
  TlsOptions tls;
  std::string model;
  std::string prompt;
  bool json = false;
};

// The commands that call a router. Shutdown signals are blocked, and no other thread runs yet.
int Run(const GenerateOptions& options);
int Run(const ChatOptions& options);
int Run(const TraceOptions& options);
int Run(const ExplainOptions& options);

void AddClientCommands(CommandLine& line);

}  // namespace penstock
