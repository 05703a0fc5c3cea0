#pragma once

#include <google/protobuf/message.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "base/lifecycle.h"
#include "base/status.h"

namespace penstock {

// This room, base/config, fills the configuration of a binary from flags, environment and a file.
// It may use base/ only. It knows no particular configuration: the binaries pass their own
// messages.
//
// The configuration of a binary is one proto message with fields of scalars, strings and lists of
// them. Its flags, environment, file and help derive from the message and from the options that its
// .proto file declares ((help, default, min, max, choices, byte_size, required)). A field
// `kv_memory` is
//   --kv_memory=1GiB  or  --kv-memory 1GiB        (a bool: --insecure, --insecure=false)
//   PENSTOCK_KV_MEMORY=1GiB
//   kv_memory: 1GiB                               in the YAML or JSON file of --config FILE
// and the first of these that is there wins, over the field's `default`. Lists are separated by
// commas; a flag of a list may also be repeated.

// The program that a configuration belongs to.
struct ProgramInfo {
  std::string name;     // of the binary
  std::string summary;  // one line for --help
  // What fields are at first where it is not what the .proto file says: of two programs that share
  // a message.
  std::map<std::string, std::string> defaults = {};
};

// What was asked for, and errors that say what was meant. Nothing is printed.
//   INVALID_ARGUMENT: the command line (exit 64); NOT_FOUND: no such file (66)
//   FAILED_PRECONDITION: the environment or the file (78)
//   CANCELLED: --help or --version; the message is what they print (0)
absl::Status FillConfig(const std::vector<std::string>& arguments, const ProgramInfo& program,
                        google::protobuf::Message& config);

// Prints what FillConfig said, help to standard output and errors to standard error, and returns
// the exit code for it.
ExitCode ReportConfig(const absl::Status& status, const ProgramInfo& program);

// One line a set field, e.g. "listen=127.0.0.1:8090 max_requests=2048", for the log at start.
std::string DescribeConfig(const google::protobuf::Message& config);

// `argv` as main has it. Errors as FillConfig.
template <class Config>
absl::StatusOr<Config> LoadConfig(int argc, char** argv, const ProgramInfo& program) {
  Config config;
  RETURN_IF_ERROR(FillConfig({argv + 1, argv + argc}, program, config));
  return config;
}

// For main: the configuration, or the process prints what is wrong (or its help) and exits.
template <class Config>
Config LoadConfigOrExit(int argc, char** argv, const ProgramInfo& program) {
  absl::StatusOr<Config> config = LoadConfig<Config>(argc, argv, program);
  if (!config.ok()) std::exit(static_cast<int>(ReportConfig(config.status(), program)));
  return *std::move(config);
}

}  // namespace penstock
