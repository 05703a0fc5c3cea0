#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

// A program's command line, however it is declared: help, man pages and shell completion are made
// from this description alone.
struct ProgramOption {
  enum class Value { kNone, kAny, kFile, kDirectory };

  std::vector<std::string> names;    // "-n", "--model"; a positional argument has one name
  std::string placeholder;           // of the value, "DIR"; empty for flags
  std::string help;                  // names the choices and the default, too
  std::string environment;           // a variable that stands for the option; may be empty
  std::vector<std::string> choices;  // all allowed values; empty: any value
  Value value = Value::kNone;
  bool positional = false;
  bool required = false;
  bool hidden = false;  // not in --help, but in the man page and in completions
};

struct Program {
  std::string name;  // of a command: the last word alone
  std::string summary;
  std::string footer;    // the end of its help
  std::string provider;  // the program that has this command's options; empty: this one
  bool hidden = false;   // not in the list of commands
  bool is_server = false;
  std::vector<ProgramOption> options;
  std::vector<Program> commands;
};

// The text of --help. `scope` is the command as it is typed: "penstock bench serve".
std::string HelpText(const Program& program, const std::string& scope, size_t width);

// The columns for help on standard output: the terminal's, at most 100.
size_t HelpWidth();

// Scripts that complete the command lines of `programs`, the first of which prints the script by
// its command `completion`. Commands with a provider are completed by that program's own script.
std::string BashCompletion(const std::vector<Program>& programs);
std::string ZshCompletion(const std::vector<Program>& programs);

// A page for man(1), in roff. `others` are the names for SEE ALSO.
struct ManualInfo {
  std::string version;
  std::vector<std::string> others;
};
std::string ManualPage(const Program& program, const ManualInfo& info);

}  // namespace penstock
