#include <algorithm>

#include "base/config/config_field.h"

namespace penstock {
namespace {

namespace pb = google::protobuf;

constexpr size_t kOptionColumn = 2;
constexpr size_t kHelpColumn = 28;

// The placeholder behind '=' in the help.
std::string Placeholder(const pb::FieldDescriptor& field, const FieldTraits& traits) {
  if (!traits.choices.empty()) return "NAME";
  if (traits.byte_size) return "SIZE";
  switch (field.cpp_type()) {
    case pb::FieldDescriptor::CPPTYPE_STRING:
      return field.is_repeated() ? "A,B,.." : "TEXT";
    default:
      return "N";
  }
}

std::string Details(const FieldTraits& traits) {
  std::string details = traits.help;
  if (!traits.choices.empty()) details += fmt::format(": {}", fmt::join(traits.choices, ", "));
  if (traits.min && traits.max) details += fmt::format("; {} to {}", *traits.min, *traits.max);
  if (!traits.default_value.empty()) details += fmt::format(" [{}]", traits.default_value);
  if (traits.required) details += " (needed)";
  return details;
}

// Wraps `text` at blanks: columns `indent` to `width`.
std::string Wrap(const std::string& text, size_t indent, size_t width) {
  std::string wrapped;
  size_t column = indent;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    const size_t length = end - begin;
    if (column > indent && column + 1 + length > width) {
      wrapped += fmt::format("\n{:{}}", "", indent);
      column = indent;
    } else if (column > indent) {
      wrapped += ' ';
      ++column;
    }
    wrapped += text.substr(begin, length);
    column += length;
    begin = end + 1;
  }
  return wrapped;
}

std::string Entry(const std::string& option, const std::string& details, size_t width) {
  std::string line = fmt::format("{:{}}{}", "", kOptionColumn, option);
  if (line.size() + 2 > kHelpColumn) {
    line += fmt::format("\n{:{}}", "", kHelpColumn);
  } else {
    line.resize(kHelpColumn, ' ');
  }
  return line + Wrap(details, kHelpColumn, width) + "\n";
}

}  // namespace

std::string HelpText(const ProgramInfo& program, const pb::Descriptor& type, size_t width) {
  std::string needed;
  std::string entries;
  std::string example;
  for (int i = 0; i < type.field_count(); ++i) {
    const pb::FieldDescriptor& field = *type.field(i);
    const FieldTraits traits = TraitsOf(field, program);
    if (traits.hidden) continue;
    std::string option = fmt::format("--{}", field.name());
    if (field.cpp_type() != pb::FieldDescriptor::CPPTYPE_BOOL || field.is_repeated()) {
      option += fmt::format("={}", Placeholder(field, traits));
    }
    if (traits.required) needed += fmt::format(" {}", option);
    if (example.empty()) example = field.name();
    entries += Entry(option, Details(traits), width);
  }
  std::ranges::transform(example, example.begin(),
                         [](char c) { return static_cast<char>(std::toupper(c)); });
  const std::string notes = fmt::format(
      "Each may also stand in the environment (PENSTOCK_{}) or in the file; a flag wins over the "
      "environment, the environment over the file.",
      example);
  return fmt::format("{}: {}\n\nUsage: {}{} [options]\n\n", program.name, program.summary,
                     program.name, needed) +
         entries + Entry("--config=FILE", "YAML or JSON with the same names", width) +
         Entry("--help, --version", "print this, or the version, and exit", width) + "\n" +
         Wrap(notes, 0, width) + "\n";
}

}  // namespace penstock
