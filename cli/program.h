#pragma once

#include <google/protobuf/descriptor.h>

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace penstock {

// A command line as it was declared: what completions and man pages are made of.
struct ProgramOption {
  enum class Value { kNone, kAny, kFile, kDirectory };

  std::vector<std::string> names;  // "--model", "-n"; of an argument without a name its one name
  std::string placeholder;         // of the value, "DIR"; empty for flags
  std::string help;
  std::string environment;           // a variable that stands for it; may be empty
  std::vector<std::string> choices;  // all that the value may be; empty: anything
  Value value = Value::kNone;
  bool positional = false;
  bool required = false;
};
struct Program {
  std::string name;  // of a command: its own alone
  std::string summary;
  std::string footer;  // what else its help says
  bool is_server = false;
  std::vector<ProgramOption> options;
  std::vector<Program> commands;
};

// What CLI11 was told. Commands without a group are in `commands`, too, but for `manual`.
Program DescribeApp(const CLI::App& app);
// The configuration of a server.
Program DescribeServer(const std::string& name, const std::string& summary,
                       const google::protobuf::Descriptor& config);

// penstock and its three servers.
std::vector<Program> AllPrograms(Program penstock);

// Scripts that complete what is typed, for all of `programs`.
std::string BashCompletion(const std::vector<Program>& programs);
std::string ZshCompletion(const std::vector<Program>& programs);

// A page for man(1), in its own language.
std::string ManualPage(const Program& program, const std::vector<Program>& all);

}  // namespace penstock
