#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace penstock {

class CommandLine;

struct UpOptions {
  std::string model;  // empty: the bundled one
  uint32_t prefill = 1;
  uint32_t decode = 1;
  uint16_t port = 8090;
  std::optional<uint16_t> http_port;  // absent: 8000, or a free one where `port` is
  std::string kv_memory;              // empty: the workers' own default
  std::optional<uint32_t> threads;    // a worker; absent: the cores shared out
  std::optional<uint32_t> block_tokens;
  std::string kv_format;
  std::string lossy_kv;
  std::string wire;
  std::string log_level = "info";
  std::string binaries;  // folder of the other programs; empty: this one's
  std::string ask;       // asked once the cluster is up
  std::string once;      // the same, and then everything stops
  uint32_t max_tokens = 96;
  bool verbose = false;
};

// Starts a cluster of processes. Shutdown signals are blocked, and no other thread runs yet.
int Run(const UpOptions& options);

void AddLocalCommands(CommandLine& line);

}  // namespace penstock
