#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/program/program.h"

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

// The words that may come next where no value is due.
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
  if (option.value == Value::kFile) return "%file";
  return option.value == Value::kDirectory ? "%directory" : "%any";
}

// "_penstock_lab" of penstock-lab: the prefix of its script's functions.
std::string FunctionOf(const std::string& program) {
  std::string name = "_" + program;
  std::ranges::replace(name, '-', '_');
  return name;
}

// The branches of a `case` over "SCOPE" or "SCOPE OPTION" for commands of another program: the
// function of that name in its script is asked.
std::string ElsewhereCases(const std::vector<Program>& programs, const std::string& function) {
  std::string cases;
  const auto add = [&](const std::string& scope, const Program& program) {
    if (program.provider.empty()) return;
    const std::string outer = scope.substr(0, scope.rfind(' '));
    cases += fmt::format("    ({}*) {}_{} \"{}${{1#{}}}\" 2>/dev/null ;;\n", Quoted(scope),
                         FunctionOf(program.provider), function, program.provider, outer);
  };
  for (const Program& program : programs) ForEachScope(program, program.name, add);
  return cases;
}

// The branches of a `case` over the first word: loads the script of the program that has it.
std::string LoadCases(const std::vector<Program>& programs, const std::string& shell) {
  std::string cases;
  for (const Program& command : programs.front().commands) {
    if (command.provider.empty()) continue;
    cases += fmt::format(
        "    ({0}) typeset -f {1}_words >/dev/null ||\n"
        "      source <(\"${{1%{2}}}{3}\" completion {4} 2>/dev/null) ;;\n",
        command.name, FunctionOf(command.provider), programs.front().name, command.provider, shell);
  }
  return cases;
}

// The branches of a `case` over "SCOPE OPTION".
std::string ValueCases(const std::vector<Program>& programs) {
  std::string cases = ElsewhereCases(programs, "values");
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

// The text with every FN replaced by the prefix of the first program's functions.
std::string WithFunctions(std::string text, const std::vector<Program>& programs) {
  const std::string function = FunctionOf(programs.front().name);
  for (size_t at = text.find("FN"); at != std::string::npos; at = text.find("FN", at)) {
    text.replace(at, 2, function);
    at += function.size();
  }
  return text;
}

// FN_values and FN_scope are the same for both shells: `words` are those in front of
// the one that is completed.
constexpr char kShared[] = R"sh(
# The words of the innermost command that was named; an option's value names none.
FN_scope() {
  local scope=${1##*/} previous= word
  shift
  for word; do
    if [[ $word != -* && -z $(FN_values "$scope $previous") &&
          -n $(FN_words "$scope $word") ]]; then
      scope="$scope $word"
    fi
    previous=$word
  done
  echo "$scope"
}
)sh";

constexpr char kBash[] = R"sh(
FN() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} scope values
  FN_load "${COMP_WORDS[0]}" "${COMP_WORDS[1]}"
  scope=$(FN_scope "${COMP_WORDS[@]:0:COMP_CWORD}")
  # --name=value comes as three words.
  if [[ $current == '=' ]]; then
    current=
  elif [[ $previous == '=' ]]; then
    previous=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  values=$(FN_values "$scope $previous")
  COMPREPLY=()
  case $values in
    %*) compopt -o filenames 2>/dev/null ;;&
    %file) mapfile -t COMPREPLY < <(compgen -f -- "$current") ;;
    %directory) mapfile -t COMPREPLY < <(compgen -d -- "$current") ;;
    %any) ;;
    '') mapfile -t COMPREPLY < <(compgen -W "$(FN_words "$scope")" -- "$current") ;;
    *) mapfile -t COMPREPLY < <(compgen -W "$values" -- "$current") ;;
  esac
}
)sh";

constexpr char kZsh[] = R"sh(
FN() {
  local previous=${words[CURRENT - 1]} scope values
  local -a entries
  FN_load "${words[1]}" "${words[2]}"
  scope=$(FN_scope "${(@)words[1,CURRENT - 1]}")
  if [[ $PREFIX == --*=* ]]; then
    previous=${PREFIX%%=*}
    compset -P '*='
  fi
  values=$(FN_values "$scope $previous")
  case $values in
    (%file) _files ;;
    (%directory) _files -/ ;;
    (%any) _message value ;;
    ('') entries=("${(@f)$(FN_words "$scope")}"); _describe word entries ;;
    (*) compadd -- ${=values} ;;
  esac
}

if [[ ${funcstack[1]} == FN ]]; then
  FN "$@"
else
)sh";

struct Script {
  std::string shell;  // its name
  std::string words;  // the branches of the function that prints what may come next
  const char* body;
};

std::string Assemble(const Script& script, const std::vector<Program>& programs) {
  const std::string function = FunctionOf(programs.front().name);
  return fmt::format(
             "# Completion for {}, made by `{} completion {}`.\n\n"
             "{}_words() {{\n  case $1 in\n{}{}  esac\n}}\n\n"
             "{}_values() {{\n  case $1 in\n{}  esac\n}}\n\n"
             "# Loads the script of the program that has this command: PROGRAM COMMAND.\n"
             "{}_load() {{\n  case $2 in\n{}    (*) ;;\n  esac\n}}\n",
             script.shell, programs.front().name, script.shell, function,
             ElsewhereCases(programs, "words"), script.words, function, ValueCases(programs),
             function, LoadCases(programs, script.shell)) +
         WithFunctions(kShared, programs) + WithFunctions(script.body, programs);
}

}  // namespace

std::string BashCompletion(const std::vector<Program>& programs) {
  std::string words;
  const auto add = [&](const std::string& scope, const Program& program) {
    if (!program.provider.empty()) return;
    std::string all;
    for (const Word& word : WordsOf(program)) all += (all.empty() ? "" : " ") + word.text;
    words += fmt::format("    ({}) echo {} ;;\n", Quoted(scope), Quoted(all));
  };
  for (const Program& program : programs) ForEachScope(program, program.name, add);
  return Assemble({"bash", words, kBash}, programs) +
         fmt::format("\ncomplete -F {}{}\n", FunctionOf(programs.front().name), NamesOf(programs));
}

std::string ZshCompletion(const std::vector<Program>& programs) {
  std::string words;
  const auto add = [&](const std::string& scope, const Program& program) {
    if (!program.provider.empty()) return;
    words += fmt::format("    ({}) print -rl --", Quoted(scope));
    for (const Word& word : WordsOf(program)) words += " " + Quoted(word.text + ":" + word.help);
    words += " ;;\n";
  };
  for (const Program& program : programs) ForEachScope(program, program.name, add);
  return fmt::format("#compdef{}\n", NamesOf(programs)) + Assemble({"zsh", words, kZsh}, programs) +
         fmt::format("  compdef {}{}\nfi\n", FunctionOf(programs.front().name), NamesOf(programs));
}

}  // namespace penstock
