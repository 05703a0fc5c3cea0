#pragma once

#include <google/protobuf/message.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "base/lifecycle.h"
#include "base/status.h"

namespace penstock {

// The configuration of a binary is one proto message, whose fields are scalars, strings and lists
// of them. Flags, environment variables, file and help derive from the message and from the options
// in its .proto file ((help, default, min, max, choices, byte_size, required)). A field `kv_memory`
// is
//   --kv_memory=1GiB  or  --kv-memory 1GiB        (a bool: --insecure, --insecure=false)
//   PENSTOCK_KV_MEMORY=1GiB
//   kv_memory: 1GiB                               in the YAML or JSON file of --config FILE
// in this order of precedence; the field's `default` comes last. The values of a list are separated
// by commas; the flag of a list may also be repeated.
//
// This room, base/config, fills that message. It may use base/ only. It knows no particular
// configuration: the binaries pass their own messages.

struct ProgramInfo {
  std::string name;     // name of the binary
  std::string summary;  // one line for --help
  // Initial values that differ from the .proto file's, if two programs share a message.
  std::map<std::string, std::string> defaults = {};
};

// Fills `config` from the arguments, the environment and the file. Prints nothing. Errors:
//   INVALID_ARGUMENT: the command line (exit 64); NOT_FOUND: no such file (66)
//   FAILED_PRECONDITION: the environment or the file (78)
//   CANCELLED: --help or --version; the message is the text to print (0)
absl::Status FillConfig(const std::vector<std::string>& arguments, const ProgramInfo& program,
                        google::protobuf::Message& config);

// Prints the result of FillConfig, help to standard output and errors to standard error, and
// returns the exit code for it.
ExitCode ReportConfig(const absl::Status& status, const ProgramInfo& program);

// Formats all set fields on one line, e.g. "listen=127.0.0.1:8090 max_requests=2048", for the log
// at start.
std::string DescribeConfig(const google::protobuf::Message& config);

// `argv` is main's. Returns the errors of FillConfig.
template <class Config>
absl::StatusOr<Config> LoadConfig(int argc, char** argv, const ProgramInfo& program) {
  Config config;
  RETURN_IF_ERROR(FillConfig({argv + 1, argv + argc}, program, config));
  return config;
}

// For main: returns the configuration, or prints the error (or the help) and exits.
template <class Config>
Config LoadConfigOrExit(int argc, char** argv, const ProgramInfo& program) {
  absl::StatusOr<Config> config = LoadConfig<Config>(argc, argv, program);
  if (!config.ok()) std::exit(static_cast<int>(ReportConfig(config.status(), program)));
  return *std::move(config);
}

}  // namespace penstock
