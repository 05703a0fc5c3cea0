#include "base/config/config_program.h"

#include <algorithm>

#include "base/config/config_field.h"

namespace penstock {
namespace {

namespace pb = google::protobuf;
using Value = ProgramOption::Value;

Value ValueOf(const pb::FieldDescriptor& field) {
  const std::string& name = field.name();
  if (field.cpp_type() == pb::FieldDescriptor::CPPTYPE_BOOL && !field.is_repeated()) {
    return Value::kNone;
  }
  for (const char* suffix : {"_file", "_cert", "_key", "_ca"}) {
    if (name.ends_with(suffix)) return Value::kFile;
  }
  return name == "model" || name.ends_with("_dir") ? Value::kDirectory : Value::kAny;
}

std::string PlaceholderOf(const pb::FieldDescriptor& field, const FieldTraits& traits) {
  if (ValueOf(field) == Value::kNone) return "";
  if (!traits.choices.empty()) return "NAME";
  if (traits.byte_size) return "SIZE";
  if (field.cpp_type() != pb::FieldDescriptor::CPPTYPE_STRING) return "N";
  return field.is_repeated() ? "A,B,.." : "TEXT";
}

std::string HelpOf(const FieldTraits& traits) {
  std::string help = traits.help;
  if (!traits.choices.empty()) help += fmt::format(": {}", fmt::join(traits.choices, ", "));
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
  if (!program.options.empty()) {
    program.footer = fmt::format(
        "Each option may also be set in the environment ({}) or in the file of --config; a flag "
        "wins over the environment, the environment over the file.",
        program.options.front().environment);
  }
  program.options.push_back({.names = {"--config"},
                             .placeholder = "FILE",
                             .help = "YAML or JSON file with the same names",
                             .environment = "PENSTOCK_CONFIG",
                             .value = Value::kFile});
  program.options.push_back({.names = {"--help"}, .help = "print the options and exit"});
  program.options.push_back({.names = {"--version"}, .help = "print the version and exit"});
  return program;
}

}  // namespace penstock
