#include <signal.h>
#include <unistd.h>

#include <optional>

#include "base/lifecycle.h"
#include "cli/client/ask.h"
#include "cli/client/client.h"
#include "cli/client/commands.h"
#include "cli/client/line_reader.h"
#include "cli/shell/interrupts.h"

namespace penstock {
namespace {

constexpr char kHelp[] =
    "  /stats  what the last answer took\n"
    "  /clear  forget the conversation\n"
    "  /exit   leave (so does Ctrl-D)\n"
    "  Ctrl-C stops an answer; twice leaves\n";

// A conversation on a terminal or through pipes. Main thread.
class Chat {
 public:
  Chat(const ChatOptions& options, Interrupts& interrupts)
      : options_(options),
        interrupts_(interrupts),
        client_(options.router),
        reader_(MakeLineReader(interrupts)),
        interactive_(isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0) {
    Clear();
  }

  int Run() {
    Note("/help lists what else there is; Ctrl-D leaves\n");
    while (!exit_code_) {
      const ReadResult read = reader_->Read();
      switch (read.kind) {
        case ReadResult::Kind::kEnd:
          return failed_;
        case ReadResult::Kind::kSignal:
          if (!read.line.empty()) stopped_before_ = false;  // It gives up that line.
          OnSignal(read.signal);
          break;
        case ReadResult::Kind::kLine:
          stopped_before_ = false;
          OnLine(read.line);
          break;
      }
    }
    return *exit_code_;
  }

 private:
  void OnLine(const std::string& line) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) return;
    if (line.starts_with('/')) {
      OnCommand(line.substr(0, line.find_last_not_of(" \t\r") + 1));
    } else if (!IsUtf8(line)) {
      fmt::print(stderr, "penstock: the line is not UTF-8\n");
      failed_ = static_cast<int>(ExitCode::kBadData);
    } else {
      Turn(line);
    }
  }

  void OnCommand(const std::string& command) {
    if (command == "/exit" || command == "/quit") {
      exit_code_ = failed_;
    } else if (command == "/clear") {
      Clear();
      Note("the conversation is forgotten\n");
    } else if (command == "/stats") {
      fmt::print(stderr, "{}", last_ ? StatsText(*last_) : "  no answer yet\n");
    } else {
      if (command != "/help") fmt::print(stderr, "{} is unknown\n", command);
      fmt::print(stderr, "{}", kHelp);
    }
  }

  // The first stops what is going on, the second leaves.
  void OnSignal(int signal) {
    if (signal != SIGINT || stopped_before_ || !interactive_) {
      exit_code_ = 128 + signal;
      if (interactive_) fmt::print(stderr, "\n");
      return;
    }
    stopped_before_ = true;
    Note("\n(Ctrl-C again leaves)\n");
  }

  void Turn(const std::string& line) {
    AddMessage("user", line);
    v1::GenerateRequest request;
    request.set_model(options_.model);
    *request.mutable_chat() = conversation_;
    request.set_reasoning(v1::REASONING_IN_TEXT);
    SetSampling(options_.sampling, request);
    const Asked asked = Ask(client_, interrupts_, std::move(request),
                            {.json = options_.json, .stats = options_.stats});
    if (asked.answer.complete()) last_ = asked.answer;
    if (asked.answer.choices() > 0) {
      AddMessage("assistant", asked.answer.text(0));
    } else {
      conversation_.mutable_messages()->RemoveLast();  // It was never answered: ask it anew.
    }
    if (asked.signal != 0) return OnSignal(asked.signal);
    failed_ = asked.exit_code();
  }

  void AddMessage(const std::string& role, const std::string& text) {
    v1::Message& message = *conversation_.add_messages();
    message.set_role(role);
    message.add_content()->set_text(text);
  }

  void Clear() {
    conversation_.clear_messages();
    if (!options_.system.empty()) AddMessage("system", options_.system);
  }

  void Note(std::string_view text) const {
    if (interactive_) fmt::print(stderr, "{}", text);
  }

  const ChatOptions& options_;
  Interrupts& interrupts_;
  InferenceClient client_;
  std::unique_ptr<LineReader> reader_;
  const bool interactive_;
  v1::ChatPrompt conversation_;
  std::optional<Answer> last_;
  bool stopped_before_ = false;
  int failed_ = 0;  // exit code of the last turn
  std::optional<int> exit_code_;
};

}  // namespace

int Run(const ChatOptions& options) {
  Interrupts interrupts({SIGINT, SIGTERM});
  return Chat(options, interrupts).Run();
}

}  // namespace penstock
