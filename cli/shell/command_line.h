#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/program/program.h"

namespace CLI {
class App;
}

namespace penstock {

// A program's commands: parses a command line and runs the command that it names. Options are
// declared with CLI11. Main thread.
class CommandLine {
 public:
  using RunCommand = std::function<int()>;

  // A command and the options that its command line fills.
  template <class Options>
  struct Declared {
    CLI::App& app;
    Options& options;
  };

  CommandLine(const std::string& name, const std::string& summary, const std::string& footer);
  ~CommandLine();

  // A command that runs Run(options), found in the namespace of Options, and whose exit code that
  // gives.
  template <class Options>
  Declared<Options> Add(const std::string& name, const std::string& summary) {
    return AddTo<Options>(*app_, name, summary);
  }
  // The same below another command: `bench serve`.
  template <class Options>
  Declared<Options> AddTo(CLI::App& parent, const std::string& name, const std::string& summary) {
    const auto options = std::make_shared<Options>();
    CLI::App& command = Declare(parent, name, summary, [options] { return Run(*options); });
    return {command, *options};
  }
  // A command whose options `provider`, another program, has: it is listed only.
  void AddProvided(const std::string& name, const std::string& summary,
                   const std::string& provider);
  // Leaves a command out of the list, though it works.
  static void Hide(CLI::App& command);

  Program Describe() const;
  // The process's exit code: an ExitCode, or 128 + n after signal n.
  int Execute(int argc, char** argv);

 private:
  CLI::App& Declare(CLI::App& parent, const std::string& name, const std::string& summary,
                    RunCommand run);
  int ReportUsage(const std::string& message) const;

  const std::unique_ptr<CLI::App> app_;
  std::map<const CLI::App*, RunCommand> commands_;
  std::map<std::string, std::string> providers_;  // by command
};

}  // namespace penstock
