#include "cli/shell/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/config/config_field.h"
#include "base/lifecycle.h"
#include "base/rpc/process_info.h"
#include "cli/shell/describe_app.h"

namespace penstock {
namespace {

std::string NameOf(const std::string& argument) { return argument.substr(0, argument.find('=')); }

// Every way to write an option of `app`, or a subcommand.
std::vector<std::string> KnownNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

// The innermost command that was named.
const CLI::App& ChosenCommand(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app : ChosenCommand(*chosen.front());
}

std::string UsageMessage(const CLI::ParseError& error, const CLI::App& app) {
  const bool unknown = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr ||
                       (app.get_subcommands().empty() && !app.remaining().empty());
  if (!unknown) return error.what();
  const std::vector<std::string> extras = app.remaining(true);
  if (extras.empty()) return error.what();
  const std::string extra = NameOf(extras.front());
  const auto nearest = Nearest(extra, KnownNames(ChosenCommand(app)));
  return fmt::format("{} is unknown{}", extra,
                     nearest ? fmt::format("; did you mean {}?", *nearest) : "");
}

// "penstock bench serve"
std::string ScopeOf(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  if (chosen.empty()) return app.get_name();
  return app.get_name() + " " + ScopeOf(*chosen.front());
}

// --kv_memory is --kv-memory, in front of '=' and up to a lone "--". Reversed, as CLI11 takes them.
std::vector<std::string> Normalised(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  for (std::string& argument : arguments) {
    if (argument == "--") break;
    if (!argument.starts_with("--")) continue;
    std::replace(argument.begin(), argument.begin() + static_cast<long>(NameOf(argument).size()),
                 '_', '-');
  }
  std::reverse(arguments.begin(), arguments.end());
  return arguments;
}

}  // namespace

CommandLine::CommandLine(const std::string& name, const std::string& summary,
                         const std::string& footer)
    : app_(std::make_unique<CLI::App>(summary, name)) {
  app_->set_help_flag("-h,--help", "print the options and exit");
  app_->set_version_flag("--version", fmt::format("{} {}", name, ProcessVersion()));
  app_->footer(footer);
  // The footer names both: the list of commands shall fit a screen.
  app_->get_help_ptr()->group("");
  app_->get_version_ptr()->group("");
}

CommandLine::~CommandLine() = default;

CLI::App& CommandLine::Declare(CLI::App& parent, const std::string& name,
                               const std::string& summary, RunCommand run) {
  CLI::App& command = *parent.add_subcommand(name, summary);
  command.footer("");
  command.set_help_flag("-h,--help", "print the options and exit")->group("Options");
  commands_[&command] = std::move(run);
  return command;
}

void CommandLine::AddProvided(const std::string& name, const std::string& summary,
                              const std::string& provider) {
  app_->add_subcommand(name, summary)->footer("");
  providers_[name] = provider;
}

void CommandLine::Hide(CLI::App& command) { command.group(""); }

Program CommandLine::Describe() const {
  Program program = DescribeApp(*app_);
  for (Program& command : program.commands) {
    const auto provider = providers_.find(command.name);
    if (provider != providers_.end()) command.provider = provider->second;
  }
  return program;
}

int CommandLine::ReportUsage(const std::string& message) const {
  const std::string scope = ScopeOf(*app_);
  fmt::print(stderr, "{}: {}\nTry `{} --help`.\n", scope, message, scope);
  return static_cast<int>(ExitCode::kUsage);
}

int CommandLine::Execute(int argc, char** argv) {
  try {
    app_->parse(Normalised(argc, argv));
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", HelpText(DescribeApp(ChosenCommand(*app_)), ScopeOf(*app_), HelpWidth()));
    return 0;
  } catch (const CLI::Success& success) {  // --version
    return app_->exit(success);
  } catch (const CLI::ParseError& error) {
    return ReportUsage(UsageMessage(error, *app_));
  }
  const auto command = commands_.find(&ChosenCommand(*app_));
  if (command != commands_.end()) return command->second();
  fmt::print(stderr, "{}", HelpText(Describe(), app_->get_name(), HelpWidth()));
  return static_cast<int>(ExitCode::kUsage);
}

}  // namespace penstock
