#include "cli/program.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "base/config/config_field.h"
#include "proto/config.pb.h"

namespace penstock {
namespace {

namespace pb = google::protobuf;
using Value = ProgramOption::Value;

constexpr char kManual[] = "manual";  // for builds; not for people

// A validator of CLI11 tells its choices only to who breaks them: "x not in {a,b}". What breaks
// them is a number and a word.
constexpr char kNoChoice[] = "-987654321";

std::vector<std::string> ChoicesOf(CLI::Option& option) {
  for (int i = 0;; ++i) {
    try {
      const std::string said = (*option.get_validator(i))(std::string(kNoChoice));
      const size_t begin = said.find("not in {");
      if (begin == std::string::npos || !said.ends_with('}')) continue;
      return SplitList(said.substr(begin + 8, said.size() - begin - 9));
    } catch (const CLI::OptionNotFound&) {
      return {};
    }
  }
}

Value ValueOf(const std::string& placeholder) {
  if (placeholder.starts_with("FILE") || placeholder == "PEM") return Value::kFile;
  return placeholder == "DIR" ? Value::kDirectory : Value::kAny;
}

ProgramOption DescribeOption(CLI::Option& option) {
  ProgramOption described{.help = option.get_description(),
                          .environment = option.get_envname(),
                          .choices = ChoicesOf(option),
                          .positional = option.get_positional(),
                          .required = option.get_required()};
  if (described.positional) {
    described.names = {option.get_single_name()};
    described.value = Value::kAny;
    return described;
  }
  for (const std::string& name : option.get_snames()) described.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) described.names.push_back("--" + name);
  if (option.get_items_expected_max() == 0) return described;
  described.placeholder = option.get_type_name();
  described.value = ValueOf(described.placeholder);
  return described;
}

Value ValueOf(const pb::FieldDescriptor& field) {
  const std::string& name = field.name();
  if (field.cpp_type() == pb::FieldDescriptor::CPPTYPE_BOOL) return Value::kNone;
  for (const char* of_file : {"_file", "_cert", "_key", "_ca"}) {
    if (name.ends_with(of_file)) return Value::kFile;
  }
  return name == "model" || name.ends_with("_dir") ? Value::kDirectory : Value::kAny;
}

std::string PlaceholderOf(const pb::FieldDescriptor& field, const FieldTraits& traits) {
  if (ValueOf(field) == Value::kNone) return "";
  if (!traits.choices.empty()) return fmt::format("{}", fmt::join(traits.choices, "|"));
  if (traits.byte_size) return "SIZE";
  if (field.cpp_type() != pb::FieldDescriptor::CPPTYPE_STRING) return "N";
  return field.is_repeated() ? "A,B,..." : "TEXT";
}

std::string HelpOf(const FieldTraits& traits) {
  std::string help = traits.help;
  if (traits.min && traits.max) help += fmt::format("; {} to {}", *traits.min, *traits.max);
  if (!traits.default_value.empty()) help += fmt::format(" [{}]", traits.default_value);
  return help;
}

std::string Upper(std::string text) {
  std::ranges::transform(text, text.begin(), [](char c) {
    return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
  });
  return text;
}

}  // namespace

Program DescribeApp(const CLI::App& app) {
  Program program{
      .name = app.get_name(), .summary = app.get_description(), .footer = app.get_footer()};
  for (const CLI::Option* option : app.get_options()) {
    // Asking a validator is not const in this version; it changes nothing.
    program.options.push_back(DescribeOption(*const_cast<CLI::Option*>(option)));
  }
  for (const CLI::App* command : app.get_subcommands({})) {
    if (command->get_name() != kManual) program.commands.push_back(DescribeApp(*command));
  }
  return program;
}

Program DescribeServer(const ProgramInfo& server, const pb::Descriptor& config) {
  Program program{.name = server.name, .summary = server.summary, .is_server = true};
  for (int i = 0; i < config.field_count(); ++i) {
    const pb::FieldDescriptor& field = *config.field(i);
    const FieldTraits traits = TraitsOf(field, server);
    if (traits.hidden) continue;
    program.options.push_back({.names = {"--" + field.name()},
                               .placeholder = PlaceholderOf(field, traits),
                               .help = HelpOf(traits),
                               .environment = "PENSTOCK_" + Upper(field.name()),
                               .choices = traits.choices,
                               .value = ValueOf(field),
                               .required = traits.required});
  }
  program.options.push_back({.names = {"--config"},
                             .placeholder = "FILE",
                             .help = "YAML or JSON with the same names",
                             .value = Value::kFile});
  program.options.push_back({.names = {"--help"}, .help = "print the options and exit"});
  program.options.push_back({.names = {"--version"}, .help = "print the version and exit"});
  return program;
}

// Names, summaries and initial values are those of the servers' own --help; a test compares them.
std::vector<Program> AllPrograms(Program penstock) {
  return {std::move(penstock),
          DescribeServer({.name = "penstock-router",
                          .summary = "places prompts on workers and streams the answers"},
                         *v1::RouterConfig::descriptor()),
          DescribeServer({.name = "penstock-prefill",
                          .summary = "turns prompts into KV and pushes it to a decode worker"},
                         *v1::WorkerConfig::descriptor()),
          DescribeServer({.name = "penstock-decode",
                          .summary = "receives prefilled KV and streams tokens",
                          .defaults = {{"listen", "127.0.0.1:8092"}}},
                         *v1::WorkerConfig::descriptor())};
}

}  // namespace penstock
