#include <fmt/format.h>

#include <algorithm>

#include "base/program/program.h"

namespace penstock {
namespace {

// Text as roff reads it: nothing at the start of a line is taken for a request, and hyphens stay
// what they are, so that options can be copied.
std::string Escaped(const std::string& text) {
  std::string escaped;
  bool line_start = true;
  for (const char c : text) {
    if (line_start && (c == '.' || c == '\'')) escaped += "\\&";
    if (c == '\\') {
      escaped += "\\e";
    } else if (c == '-') {
      escaped += "\\-";
    } else {
      escaped += c;
    }
    line_start = c == '\n';
  }
  return escaped;
}

std::string Bold(const std::string& text) { return "\\fB" + Escaped(text) + "\\fR"; }
std::string Italic(const std::string& text) { return "\\fI" + Escaped(text) + "\\fR"; }

std::string Upper(std::string text) {
  std::ranges::transform(text, text.begin(), [](char c) {
    return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
  });
  return text;
}

// A paragraph a line; lines that are indented stay as they are.
std::string Paragraphs(const std::string& text) {
  std::string out;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.empty()) {
      continue;
    } else if (line.starts_with(' ')) {
      out += ".br\n" + Escaped(line.substr(line.find_first_not_of(' '))) + "\n";
    } else {
      out += ".PP\n" + Escaped(line) + "\n";
    }
  }
  return out;
}

std::string OptionEntry(const ProgramOption& option) {
  std::string names;
  for (const std::string& name : option.names) {
    names += (names.empty() ? "" : ", ") + (option.positional ? Italic(name) : Bold(name));
  }
  if (!option.placeholder.empty()) names += " " + Italic(option.placeholder);
  std::string help = Escaped(option.help.empty() ? "see above" : option.help);
  if (option.required) help += " (required)";
  if (!option.environment.empty()) help += "; " + Bold(option.environment) + " in the environment";
  return fmt::format(".TP\n{}\n{}\n", names, help);
}

std::string Options(const Program& program) {
  std::string out;
  for (const ProgramOption& option : program.options) out += OptionEntry(option);
  return out;
}

std::string Synopsis(const Program& program, const std::string& scope) {
  std::string line = Bold(scope);
  for (const ProgramOption& option : program.options) {
    if (!option.required && !option.positional) continue;
    const std::string name = option.positional
                                 ? Italic(option.names.back())
                                 : Bold(option.names.back()) + " " + Italic(option.placeholder);
    line += option.required ? " " + name : " [" + name + "]";
  }
  return line + " [" + Italic("option") + "]...\n";
}

// A command of another program, in one line.
std::string Elsewhere(const Program& command) {
  return ".PP\n" + Escaped("Its options are in the manual of ") + Bold(command.provider) + "(1).\n";
}

std::string Commands(const Program& program, const std::string& scope) {
  std::string out;
  for (const Program& command : program.commands) {
    const std::string inner = scope + " " + command.name;
    out += ".SS " + Escaped(inner) + "\n" + Escaped(command.summary) + "\n";
    if (!command.provider.empty()) {
      out += Elsewhere(command);
      continue;
    }
    out += ".PP\n" + Synopsis(command, inner) + Options(command) + Paragraphs(command.footer) +
           Commands(command, inner);
  }
  return out;
}

constexpr char kExitStatus[] =
    ".SH EXIT STATUS\n"
    "0: success. 1: a failure at run time. 64: wrong command line. 65: malformed input.\n"
    "66: no such file. 69: a peer, or a program, is not available. 71: the system refused a\n"
    "resource, such as a port in use. 75: try again later. 78: wrong configuration.\n"
    "128 + n: ended by signal n.\n";

std::string Configuration(const Program& program) {
  if (!program.is_server) return "";
  return ".SH CONFIGURATION\n"
         "Each option may also be set in the environment or, under its name without the hyphens,\n"
         "in the YAML or JSON file of " +
         Bold("--config") +
         ".\nA flag wins over the environment, the environment over the file. Hyphens and\n"
         "underscores in names are the same. Lists are separated by commas.\n";
}

std::string SeeAlso(const std::vector<std::string>& others) {
  std::string names;
  for (const std::string& other : others) {
    names += (names.empty() ? "" : ",\n") + Bold(other) + "(1)";
  }
  return names.empty() ? "" : ".SH SEE ALSO\n" + names + "\n";
}

}  // namespace

std::string ManualPage(const Program& program, const ManualInfo& info) {
  std::string page = fmt::format(
      ".\\\" Made from what the command line of {} declares.\n"
      ".TH {} 1 \"\" \"penstock {}\" \"User Commands\"\n.nh\n.ad l\n"
      ".SH NAME\n{} \\- {}\n.SH SYNOPSIS\n",
      program.name, Escaped(Upper(program.name)), info.version, Escaped(program.name),
      Escaped(program.summary));
  if (!program.commands.empty()) {
    page += Bold(program.name) + " " + Italic("command") + " [" + Italic("option") + "]...\n";
  } else {
    page += Synopsis(program, program.name);
  }
  page += ".SH OPTIONS\n" + Options(program);
  if (!program.commands.empty()) page += ".SH COMMANDS\n" + Commands(program, program.name);
  return page + Configuration(program) + kExitStatus + SeeAlso(info.others);
}

}  // namespace penstock
