#include <fmt/format.h>

#include <functional>

#include "cli/program.h"

namespace penstock {
namespace {

using Value = ProgramOption::Value;

// Calls `visit` with every program and command, and the words that lead to it.
void ForEachScope(const Program& program, const std::string& scope,
                  const std::function<void(const std::string&, const Program&)>& visit) {
  visit(scope, program);
  for (const Program& command : program.commands) {
    ForEachScope(command, scope + " " + command.name, visit);
  }
}

// In single quotes, for either shell.
std::string Quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c == '\n' ? ' ' : c;
    }
  }
  return quoted + "'";
}

struct Word {
  std::string text;
  std::string help;
};

// What may come next where no value is due.
std::vector<Word> WordsOf(const Program& program) {
  std::vector<Word> words;
  for (const Program& command : program.commands) words.push_back({command.name, command.summary});
  for (const ProgramOption& option : program.options) {
    if (option.positional) {
      for (const std::string& choice : option.choices) words.push_back({choice, option.help});
    } else {
      words.push_back({option.names.back(), option.help});
    }
  }
  return words;
}

std::string ValuesOf(const ProgramOption& option) {
  if (!option.choices.empty()) return fmt::format("{}", fmt::join(option.choices, " "));
  if (option.value == Value::kFile) return "@file";
  return option.value == Value::kDirectory ? "@directory" : "@any";
}

// The branches of a `case` over "SCOPE OPTION".
std::string ValueCases(const std::vector<Program>& programs) {
  std::string cases;
  const auto add = [&](const std::string& scope, const Program& program) {
    for (const ProgramOption& option : program.options) {
      if (option.positional || option.value == Value::kNone) continue;
      for (const std::string& name : option.names) {
        cases += fmt::format("    ({}) echo {} ;;\n", Quoted(fmt::format("{} {}", scope, name)),
                             Quoted(ValuesOf(option)));
      }
    }
  };
  for (const Program& program : programs) ForEachScope(program, program.name, add);
  return cases;
}

std::string NamesOf(const std::vector<Program>& programs) {
  std::string names;
  for (const Program& program : programs) names += " " + program.name;
  return names;
}

// _penstock_values and _penstock_scope are the same for both shells: `words` are those in front of
// the one that is completed.
constexpr char kShared[] = R"sh(
# The words of the innermost command that was named; an option's value names none.
_penstock_scope() {
  local scope=${1##*/} previous= word
  shift
  for word; do
    if [[ $word != -* && -z $(_penstock_values "$scope $previous") &&
          -n $(_penstock_words "$scope $word") ]]; then
      scope="$scope $word"
    fi
    previous=$word
  done
  echo "$scope"
}
)sh";

constexpr char kBash[] = R"sh(
_penstock() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} scope values
  scope=$(_penstock_scope "${COMP_WORDS[@]:0:COMP_CWORD}")
  # --name=value comes as three words.
  if [[ $current == '=' ]]; then
    current=
  elif [[ $previous == '=' ]]; then
    previous=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  values=$(_penstock_values "$scope $previous")
  COMPREPLY=()
  case $values in
    @*) compopt -o filenames 2>/dev/null ;;&
    @file) mapfile -t COMPREPLY < <(compgen -f -- "$current") ;;
    @directory) mapfile -t COMPREPLY < <(compgen -d -- "$current") ;;
    @any) ;;
    '') mapfile -t COMPREPLY < <(compgen -W "$(_penstock_words "$scope")" -- "$current") ;;
    *) mapfile -t COMPREPLY < <(compgen -W "$values" -- "$current") ;;
  esac
}
)sh";

constexpr char kZsh[] = R"sh(
_penstock() {
  local previous=${words[CURRENT - 1]} scope values
  local -a entries
  scope=$(_penstock_scope "${(@)words[1,CURRENT - 1]}")
  if [[ $PREFIX == --*=* ]]; then
    previous=${PREFIX%%=*}
    compset -P '*='
  fi
  values=$(_penstock_values "$scope $previous")
  case $values in
    (@file) _files ;;
    (@directory) _files -/ ;;
    (@any) _message value ;;
    ('') entries=("${(@f)$(_penstock_words "$scope")}"); _describe word entries ;;
    (*) compadd -- ${=values} ;;
  esac
}

if [[ ${funcstack[1]} == _penstock ]]; then
  _penstock "$@"
else
)sh";

}  // namespace

std::string BashCompletion(const std::vector<Program>& programs) {
  std::string words;
  const auto add = [&](const std::string& scope, const Program& program) {
    std::string all;
    for (const Word& word : WordsOf(program)) all += (all.empty() ? "" : " ") + word.text;
    words += fmt::format("    ({}) echo {} ;;\n", Quoted(scope), Quoted(all));
  };
  for (const Program& program : programs) ForEachScope(program, program.name, add);
  return fmt::format(
      "# Completion for bash, made by `penstock completion bash`.\n\n"
      "_penstock_words() {{\n  case $1 in\n{}  esac\n}}\n\n"
      "_penstock_values() {{\n  case $1 in\n{}  esac\n}}\n{}{}\ncomplete -F _penstock{}\n",
      words, ValueCases(programs), kShared, kBash, NamesOf(programs));
}

std::string ZshCompletion(const std::vector<Program>& programs) {
  std::string words;
  const auto add = [&](const std::string& scope, const Program& program) {
    words += fmt::format("    ({}) print -rl --", Quoted(scope));
    for (const Word& word : WordsOf(program)) words += " " + Quoted(word.text + ":" + word.help);
    words += " ;;\n";
  };
  for (const Program& program : programs) ForEachScope(program, program.name, add);
  return fmt::format(
      "#compdef{}\n# Completion for zsh, made by `penstock completion zsh`.\n\n"
      "_penstock_words() {{\n  case $1 in\n{}  esac\n}}\n\n"
      "_penstock_values() {{\n  case $1 in\n{}  esac\n}}\n{}{}  compdef _penstock{}\nfi\n",
      NamesOf(programs), words, ValueCases(programs), kShared, kZsh, NamesOf(programs));
}

}  // namespace penstock
