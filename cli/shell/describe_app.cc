#include "cli/shell/describe_app.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "base/config/config_field.h"

namespace penstock {
namespace {

using Value = ProgramOption::Value;

// A validator of CLI11 names its choices only in its error: "x not in {a,b}". This value, a number
// and a word at once, is never one of them.
constexpr char kNoChoice[] = "-987654321";

std::vector<std::string> ChoicesOf(CLI::Option& option) {
  for (int i = 0;; ++i) {
    try {
      const std::string error = (*option.get_validator(i))(std::string(kNoChoice));
      const size_t begin = error.find("not in {");
      if (begin == std::string::npos || !error.ends_with('}')) continue;
      return SplitList(error.substr(begin + 8, error.size() - begin - 9));
    } catch (const CLI::OptionNotFound&) {
      return {};
    }
  }
}

Value ValueOf(const std::string& placeholder) {
  if (placeholder.starts_with("FILE") || placeholder == "PEM") return Value::kFile;
  return placeholder == "DIR" ? Value::kDirectory : Value::kAny;
}

// The choices stand in front of the default: "lanes allowed: auto, tcp [auto]".
std::string WithChoices(std::string help, const std::vector<std::string>& choices) {
  if (choices.empty()) return help;
  help.insert(std::min(help.rfind(" ["), help.size()),
              fmt::format(": {}", fmt::join(choices, ", ")));
  return help;
}

ProgramOption DescribeOption(CLI::Option& option) {
  ProgramOption described{.help = option.get_description(),
                          .environment = option.get_envname(),
                          .choices = ChoicesOf(option),
                          .positional = option.get_positional(),
                          .required = option.get_required(),
                          .hidden = option.get_group().empty()};
  if (described.positional) {
    described.names = {option.get_single_name()};
    described.value = Value::kAny;
    return described;
  }
  for (const std::string& name : option.get_snames()) described.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) described.names.push_back("--" + name);
  if (option.get_items_expected_max() == 0) return described;
  described.help = WithChoices(described.help, described.choices);
  described.placeholder = option.get_type_name();
  described.value = ValueOf(described.placeholder);
  return described;
}

}  // namespace

Program DescribeApp(const CLI::App& app) {
  Program program{.name = app.get_name(),
                  .summary = app.get_description(),
                  .footer = app.get_footer(),
                  .hidden = app.get_group().empty()};
  for (const CLI::Option* option : app.get_options()) {
    // Asking a validator is not const in this version; it changes nothing.
    program.options.push_back(DescribeOption(*const_cast<CLI::Option*>(option)));
  }
  for (const CLI::App* command : app.get_subcommands({})) {
    program.commands.push_back(DescribeApp(*command));
  }
  return program;
}

}  // namespace penstock
