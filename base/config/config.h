#pragma once

#include <google/protobuf/message.h>

#include <cstdlib>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/config/renamed_fields.h"
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
// commas; a flag of a list may also be repeated. A field that was renamed (renamed_fields.h) can
// also be set by its old name, with a warning.

// The program that a configuration belongs to.
struct ProgramInfo {
  std::string name;     // the binary's
  std::string summary;  // one line for --help
  // Defaults that differ from the .proto file's, by field, for programs that share a message.
  std::map<std::string, std::string> defaults = {};
  std::span<const RenamedField> renamed = RenamedFields();
};

// Fills `config` from all sources. Prints nothing; `warnings`, when given, gets one line for each
// old name that was used. Errors say what is allowed:
//   INVALID_ARGUMENT: the command line (exit 64); NOT_FOUND: no such file (66)
//   FAILED_PRECONDITION: the environment or the file (78)
//   CANCELLED: --help or --version; the message is what they print (0)
absl::Status FillConfig(const std::vector<std::string>& arguments, const ProgramInfo& program,
                        google::protobuf::Message& config,
                        std::vector<std::string>* warnings = nullptr);

// Prints the status of FillConfig, help to standard output and errors to standard error, and
// returns the exit code for it.
ExitCode ReportConfig(const absl::Status& status, const ProgramInfo& program);

// Prints the warnings of FillConfig to standard error: the log is configured only afterwards.
void PrintConfigWarnings(const std::vector<std::string>& warnings, const ProgramInfo& program);

// Every set field, e.g. "listen=127.0.0.1:8090 max_requests=2048", for the log at start.
std::string DescribeConfig(const google::protobuf::Message& config);

// `argv` is main's. Prints warnings. Errors of FillConfig.
template <class Config>
absl::StatusOr<Config> LoadConfig(int argc, char** argv, const ProgramInfo& program) {
  Config config;
  std::vector<std::string> warnings;
  RETURN_IF_ERROR(FillConfig({argv + 1, argv + argc}, program, config, &warnings));
  PrintConfigWarnings(warnings, program);
  return config;
}

// For main: returns the configuration, or prints the error (or the help) and exits the process.
template <class Config>
Config LoadConfigOrExit(int argc, char** argv, const ProgramInfo& program) {
  absl::StatusOr<Config> config = LoadConfig<Config>(argc, argv, program);
  if (!config.ok()) std::exit(static_cast<int>(ReportConfig(config.status(), program)));
  return *std::move(config);
}

}  // namespace penstock
