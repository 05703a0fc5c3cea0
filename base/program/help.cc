#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "base/program/program.h"

namespace penstock {
namespace {

constexpr size_t kWidthMin = 50;
constexpr size_t kWidthMax = 100;
constexpr size_t kNameColumn = 2;
constexpr size_t kHelpColumn = 28;

// "-n N", "--model=DIR", "PROMPT"
std::string Typed(const ProgramOption& option) {
  std::string names = fmt::format("{}", fmt::join(option.names, ", "));
  if (option.placeholder.empty()) return names;
  return names + (option.names.back().starts_with("--") ? "=" : " ") + option.placeholder;
}

std::string Details(const ProgramOption& option) {
  std::string details = option.help;
  if (option.required && !option.positional) details += " (required)";
  return details;
}

// `text` from column `indent` on, broken at blanks before `width`.
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

std::string Entry(const std::string& name, const std::string& details, size_t width) {
  std::string line = fmt::format("{:{}}{}", "", kNameColumn, name);
  if (line.size() + 2 > kHelpColumn) {
    line += fmt::format("\n{:{}}", "", kHelpColumn);
  } else {
    line.resize(kHelpColumn, ' ');
  }
  return line + Wrap(details, kHelpColumn, width) + "\n";
}

std::string UsageLine(const Program& program, const std::string& scope) {
  std::string line = scope;
  const bool takes_arguments =
      std::ranges::any_of(program.options, [](const auto& option) { return option.positional; });
  if (!program.commands.empty() && !takes_arguments) line += " COMMAND";
  for (const ProgramOption& option : program.options) {
    if (option.required) line += " " + Typed(option);
    if (option.positional && !option.required) line += " [" + Typed(option) + "]";
  }
  return line + " [options]";
}

// The lines of a footer that begin with a blank are laid out already.
std::string Footer(const std::string& footer, size_t width) {
  std::string text;
  for (size_t begin = 0; begin < footer.size();) {
    const size_t end = std::min(footer.find('\n', begin), footer.size());
    const std::string line = footer.substr(begin, end - begin);
    text += (line.starts_with(' ') ? line : Wrap(line, 0, width)) + "\n";
    begin = end + 1;
  }
  return text;
}

}  // namespace

std::string HelpText(const Program& program, const std::string& scope, size_t width) {
  std::string commands;
  for (const Program& command : program.commands) {
    if (!command.hidden) commands += Entry(command.name, command.summary, width);
  }
  std::string options;
  for (const ProgramOption& option : program.options) {
    if (!option.hidden) options += Entry(Typed(option), Details(option), width);
  }
  std::string help =
      fmt::format("{}: {}\n\nUsage: {}\n", scope, program.summary, UsageLine(program, scope));
  if (!commands.empty()) help += "\nCommands:\n" + commands;
  if (!options.empty()) help += "\n" + options;
  if (!program.footer.empty()) help += "\n" + Footer(program.footer, width);
  return help;
}

size_t HelpWidth() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < kWidthMin) return kWidthMax;
  return std::min<size_t>(size.ws_col, kWidthMax);
}

}  // namespace penstock
