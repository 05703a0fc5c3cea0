// `penstock up`, `generate` and `chat` as real processes, against stand-ins of the servers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "lab/fake/temp_folder.h"
#include "tests/cli/process.h"
#include "tests/model/gguf/gguf_writer.h"
#include "tests/support/environment.h"
#include "tests/support/files.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

std::string Penstock() { return BinaryFolder() + "/penstock"; }
std::string Fakes() { return BinaryFolder() + "/fake"; }

// Processes of this test's stand-ins that run now, found by their ready file's folder.
int RunningUnder(const std::string& folder) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string command = ReadFile(entry.path() / "cmdline");
    if (command.find("--ready_file=" + folder) != std::string::npos) ++count;
  }
  return count;
}

// The stand-in that was started with `argument`; 0: there is none.
pid_t RunningPid(const std::string& folder, const std::string& argument) {
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string command = ReadFile(entry.path() / "cmdline");
    const bool ours = command.find("--ready_file=" + folder) != std::string::npos;
    if (ours && command.find(argument) != std::string::npos) {
      return static_cast<pid_t>(std::stol(entry.path().filename()));
    }
  }
  return 0;
}

class UpTest : public ::testing::Test {
 protected:
  UpTest() {
    fs::create_directories(folder_ + "/model");
    fs::create_directories(folder_ + "/tmp");
    std::ofstream(folder_ + "/model/config.json") << "{}";
  }

  Process& Up(std::vector<std::string> more, std::map<std::string, std::string> environment = {}) {
    std::vector<std::string> arguments = {Penstock(), "up", "--model",   folder_ + "/model",
                                          "--port",   "0",  "--bin-dir", Fakes()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    environment["TMPDIR"] = folder_ + "/tmp";
    return process_.emplace(arguments, environment);
  }

  // Behind "endpoint" in what `up` prints.
  std::string Endpoint() const {
    std::istringstream stream(process_->output());
    for (std::string word; stream >> word;) {
      if (word == "endpoint" && stream >> word) return word;
    }
    return "";
  }

  std::string StartedEndpoint() {
    Up({});
    EXPECT_TRUE(process_->AwaitOutput("Ctrl-C stops everything")) << process_->error();
    return Endpoint();
  }

  void ExpectNothingLeft() const {
    EXPECT_TRUE(fs::is_empty(folder_ + "/tmp"));
    EXPECT_EQ(RunningUnder(folder_ + "/tmp"), 0);
  }

  const TempFolder temporary_;
  const std::string folder_ = temporary_.path();
  std::optional<Process> process_;
};

TEST_F(UpTest, OnceAnswersAndLeavesNothing) {
  Process& up = Up({"--once", "one two three", "--prefill", "2", "--decode", "2"});
  EXPECT_EQ(up.Wait(), 0) << up.error();
  EXPECT_EQ(up.output(), "user=one two three\n");  // It asks as in a chat.
  for (const char* words :
       {"prefill-0", "prefill-1", "decode-0", "decode-1", "router", "TTFT", "TPOT",
        "384 KiB, 5 of 6 layers", "transport   tcp", "prefill-0 -> decode-0"}) {
    EXPECT_THAT(up.error(), HasSubstr(words));
  }
  ExpectNothingLeft();
}

TEST_F(UpTest, WithoutAModelTheBundledOneIsServed) {
  Process& up = process_.emplace(
      std::vector<std::string>{Penstock(), "up", "--port", "0", "--bin-dir", Fakes()},
      std::map<std::string, std::string>{{"TMPDIR", folder_ + "/tmp"}});
  ASSERT_TRUE(up.AwaitOutput("Ctrl-C stops everything")) << up.error();
  EXPECT_THAT(up.output(), HasSubstr("model penstock-tiny"));
  up.Signal(SIGINT);
  EXPECT_EQ(up.Wait(), 128 + SIGINT);
  ExpectNothingLeft();
}

TEST_F(UpTest, AnInstalledProgramServesTheModelOfItsPrefix) {
  const std::string model = folder_ + "/share/penstock/models/penstock-tiny";
  fs::create_directories(folder_ + "/bin");
  fs::copy_file(Penstock(), folder_ + "/bin/penstock");
  const std::vector<std::string> arguments = {
      folder_ + "/bin/penstock", "up", "--port", "0", "--bin-dir", Fakes(), "--once", "one two"};
  const std::map<std::string, std::string> environment = {{"TMPDIR", folder_ + "/tmp"}};
  Process& without = process_.emplace(arguments, environment);
  EXPECT_EQ(without.Wait(), 66);
  EXPECT_THAT(without.error(), HasSubstr("no bundled model at " + model));
  EXPECT_THAT(without.error(), HasSubstr("--model"));
  fs::create_directories(model);
  std::ofstream(model + "/config.json") << "{}";
  Process& with = process_.emplace(arguments, environment);
  EXPECT_EQ(with.Wait(), 0) << with.error();
  EXPECT_EQ(with.output(), "user=one two\n");
  ExpectNothingLeft();
}

TEST_F(UpTest, AGgufFileIsServedUnderItsName) {
  GgufWriter writer = LlamaMetadata();
  writer.Tensor("token_embd.weight", "Q8_0", {10, 32});
  const std::string path = folder_ + "/tiny-Q8_0.gguf";
  std::ofstream(path) << writer.Bytes();
  const std::vector<std::string> arguments = {Penstock(), "up", "--model",   path,
                                              "--port",   "0",  "--bin-dir", Fakes()};
  const std::map<std::string, std::string> environment = {{"TMPDIR", folder_ + "/tmp"}};
  Process& up = process_.emplace(arguments, environment);
  ASSERT_TRUE(up.AwaitOutput("Ctrl-C stops everything")) << up.error();
  EXPECT_THAT(up.output(), HasSubstr("model tiny-Q8_0\n"));
  up.Signal(SIGINT);
  EXPECT_EQ(up.Wait(), 128 + SIGINT);
  std::ofstream(path) << LlamaMetadata("mamba").Bytes();
  Process& refused = process_.emplace(arguments, environment);
  EXPECT_EQ(refused.Wait(), 65);
  EXPECT_THAT(refused.error(), HasSubstr("general.architecture\" is \"mamba\""));
  ExpectNothingLeft();
}

TEST_F(UpTest, AskAnswersAndStaysUp) {
  Process& up = Up({"--ask", "hello there"});
  ASSERT_TRUE(up.AwaitOutput("Ctrl-C stops everything")) << up.error();
  EXPECT_THAT(up.output(), HasSubstr("hello there\n"));
  EXPECT_EQ(RunningUnder(folder_ + "/tmp"), 3);
  up.Signal(SIGINT);
  EXPECT_EQ(up.Wait(), 128 + SIGINT);
  ExpectNothingLeft();
}

TEST_F(UpTest, EverySignalStopsEverything) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    Process& up = Up({});
    ASSERT_TRUE(up.AwaitOutput("Ctrl-C stops everything")) << up.error();
    up.Signal(number);
    EXPECT_EQ(up.Wait(), 128 + number);
    ExpectNothingLeft();
  }
}

TEST_F(UpTest, AWorkerThatRefusesToStartEndsAllWithItsCode) {
  Process& up = Up({"--decode", "2"}, {{"FAKE_WORKER", "decode-1:exit"}});
  EXPECT_EQ(up.Wait(), 66);
  EXPECT_THAT(up.error(), HasSubstr("decode-1"));
  EXPECT_THAT(up.error(), HasSubstr("ended with exit code 66"));
  EXPECT_THAT(up.error(), HasSubstr("the weights are gone"));
  ExpectNothingLeft();
}

TEST_F(UpTest, AWorkerThatDiesIsStartedAgain) {
  Process& up = Up({"--decode", "2"});
  ASSERT_TRUE(up.AwaitOutput("Ctrl-C stops everything")) << up.error();
  const std::string named = "--worker_id=decode-1";
  const pid_t before = RunningPid(folder_ + "/tmp", named);
  ASSERT_GT(before, 0);
  kill(before, SIGKILL);
  ASSERT_TRUE(up.AwaitError("decode-1 (pid " + std::to_string(before) +
                            ") was killed by signal 9 (Killed); its requests continue"));
  ASSERT_TRUE(WaitUntil([&] {
    const pid_t after = RunningPid(folder_ + "/tmp", named);
    return after > 0 && after != before;
  }));
  // At its old address.
  const std::string command =
      ReadFile("/proc/" + std::to_string(RunningPid(folder_ + "/tmp", named)) + "/cmdline");
  EXPECT_THAT(command, HasSubstr("--listen=127.0.0.1:1"));
  up.Signal(SIGINT);
  EXPECT_EQ(up.Wait(), 128 + SIGINT);
  ExpectNothingLeft();
}

TEST_F(UpTest, AWorkerThatDiesAgainAndAgainEndsAll) {
  const std::string when = folder_ + "/now";
  Process& up = Up({}, {{"FAKE_WORKER", "prefill-0:crash"}, {"FAKE_CRASH_WHEN", when}});
  ASSERT_TRUE(up.AwaitOutput("Ctrl-C stops everything")) << up.error();
  std::ofstream(when) << "now";
  EXPECT_EQ(up.Wait(), 1);
  EXPECT_THAT(up.error(), HasSubstr("prefill-0"));
  EXPECT_THAT(up.error(), HasSubstr("was killed by signal 11"));
  EXPECT_THAT(up.error(), HasSubstr("last words"));
  ExpectNothingLeft();
}

TEST_F(UpTest, ASecondSignalDoesNotWaitForADeafWorker) {
  Process& up = Up({}, {{"FAKE_WORKER", "decode-0:deaf"}});
  ASSERT_TRUE(up.AwaitOutput("Ctrl-C stops everything")) << up.error();
  up.Signal(SIGINT);
  ASSERT_TRUE(up.AwaitError("stopping"));
  up.Signal(SIGINT);
  EXPECT_EQ(up.Wait(), 128 + SIGINT);
  ExpectNothingLeft();
}

TEST_F(UpTest, ItsChildrenEndWithItWhenItIsKilled) {
  Process& up = Up({});
  ASSERT_TRUE(up.AwaitOutput("Ctrl-C stops everything")) << up.error();
  up.Signal(SIGKILL);
  EXPECT_EQ(up.Wait(), 128 + SIGKILL);
  EXPECT_TRUE(
      WaitUntil([&] { return RunningUnder(folder_ + "/tmp") == 0; }, std::chrono::seconds(30)));
}

TEST_F(UpTest, MissingProgramsAreNamed) {
  Process process({Penstock(), "up", "--model", folder_ + "/model", "--bin-dir", folder_});
  EXPECT_EQ(process.Wait(), 66);
  EXPECT_THAT(process.error(), HasSubstr(folder_ + "/penstock-prefill"));
}

TEST_F(UpTest, APortInUseIsTheRoutersError) {
  const std::string endpoint = StartedEndpoint();
  Process second({Penstock(), "up", "--model", folder_ + "/model", "--bin-dir", Fakes(), "--port",
                  endpoint.substr(endpoint.rfind(':') + 1)});
  EXPECT_EQ(second.Wait(), 71);
  EXPECT_THAT(second.error(), HasSubstr("cannot listen on " + endpoint));
}

TEST_F(UpTest, VerboseShowsTheLogs) {
  Process& up = Up({"--verbose"}, {{"FAKE_WORKER", "decode-0:exit"}});
  up.Wait();
  EXPECT_THAT(up.error(), HasSubstr("[decode-0] the weights are gone"));
}

TEST_F(UpTest, GenerateStreamsTextAndStats) {
  const std::string endpoint = StartedEndpoint();
  Process generate({Penstock(), "generate", "--endpoint", endpoint, "--stats", "-n", "2", "a b"});
  EXPECT_EQ(generate.Wait(), 0) << generate.error();
  EXPECT_EQ(generate.output(), "a b\n\n--- 2 ---\na b\n");
  EXPECT_THAT(generate.error(), HasSubstr("TPOT"));

  Process piped({Penstock(), "generate", "-"}, {{"PENSTOCK_ENDPOINT", endpoint}});
  piped.Write("from a pipe\n");
  EXPECT_EQ(piped.Wait(), 0) << piped.error();
  EXPECT_EQ(piped.output(), "from a pipe\n");
  EXPECT_EQ(piped.error(), "");
}

TEST_F(UpTest, GenerateWritesJsonLines) {
  const std::string endpoint = StartedEndpoint();
  Process generate({Penstock(), "generate", "--endpoint", endpoint, "--json", "--stats", "a \"b"});
  EXPECT_EQ(generate.Wait(), 0) << generate.error();
  std::istringstream lines(generate.output());
  std::string text;
  nlohmann::json last;
  for (std::string line; std::getline(lines, line);) {
    last = nlohmann::json::parse(line);
    if (last["type"] == "chunk") text += last["text"];
  }
  EXPECT_EQ(text, "a \"b");
  EXPECT_EQ(last["type"], "final");
  EXPECT_EQ(last["finish_reason"], "stop");
  EXPECT_EQ(last["usage"]["completion_tokens"], 2);
  EXPECT_EQ(last["stats"]["kv_bytes_moved"], 393216);
  EXPECT_EQ(last["stats"]["layers_overlapped"], 5);
  EXPECT_EQ(last["stats"]["transport"], "tcp");
}

TEST_F(UpTest, ErrorsOfTheServerSetTheExitCode) {
  const std::string endpoint = StartedEndpoint();
  const std::vector<std::tuple<std::string, int, std::string>> cases = {
      {"", 65, "prompt is empty"},
      {"full", 75, "max_requests is reached"},
      {"nobody", 69, "no decode worker is ready"}};
  for (const auto& [prompt, code, words] : cases) {
    Process generate({Penstock(), "generate", "--endpoint", endpoint, "--", prompt});
    EXPECT_EQ(generate.Wait(), code) << words;
    EXPECT_EQ(generate.error(), "penstock: " + words + "\n");
  }
}

TEST_F(UpTest, CtrlCCancelsGenerate) {
  const std::string endpoint = StartedEndpoint();
  Process generate({Penstock(), "generate", "--endpoint", endpoint, "hang"});
  ASSERT_TRUE(generate.AwaitOutput("hanging"));
  generate.Signal(SIGINT);
  EXPECT_EQ(generate.Wait(), 130);
  EXPECT_EQ(generate.error(), "");
}

TEST_F(UpTest, ChatThroughPipesRemembersAndForgets) {
  const std::string endpoint = StartedEndpoint();
  Process chat({Penstock(), "chat", "--endpoint", endpoint, "--system", "S"});
  chat.Write("hi\n\nagain\n/stats\n/clear\nnew\n/what\n/exit\nnot read\n");
  EXPECT_EQ(chat.Wait(), 0) << chat.error();
  EXPECT_EQ(chat.output(),
            "system=S user=hi\n"
            "system=S user=hi assistant=system=S user=hi user=again\n"
            "system=S user=new\n");
  EXPECT_THAT(chat.error(), HasSubstr("TTFT"));
  EXPECT_THAT(chat.error(), HasSubstr("/what is unknown"));
}

TEST_F(UpTest, ChatReportsAnErrorAndGoesOn) {
  const std::string endpoint = StartedEndpoint();
  Process chat({Penstock(), "chat", "--endpoint", endpoint, "--json"});
  chat.Write("one\n");
  ASSERT_TRUE(chat.AwaitOutput("\"final\""));
  process_.reset();  // Kills `up`, and its children follow.
  ASSERT_TRUE(
      WaitUntil([&] { return RunningUnder(folder_ + "/tmp") == 0; }, std::chrono::seconds(30)));
  chat.Write("two\n");
  EXPECT_EQ(chat.Wait(), 69);
  EXPECT_THAT(chat.output(), HasSubstr(R"("type":"error")"));
  EXPECT_THAT(chat.error(), HasSubstr("no server at " + endpoint));
}

TEST_F(UpTest, ASignalLeavesAChatThroughPipes) {
  const std::string endpoint = StartedEndpoint();
  Process chat({Penstock(), "chat", "--endpoint", endpoint});
  chat.Write("hang\n");
  ASSERT_TRUE(chat.AwaitOutput("hanging"));
  chat.Signal(SIGTERM);
  EXPECT_EQ(chat.Wait(), 128 + SIGTERM);
}

TEST_F(UpTest, ChatOnATerminalEditsAndHasAHistory) {
  const std::string endpoint = StartedEndpoint();
  const auto chat = Process::OnTerminal({Penstock(), "chat", "--endpoint", endpoint});
  ASSERT_TRUE(chat->AwaitOutput("> "));
  chat->Write("w\xc3\xb6rld\x1b[D!\r");  // The left arrow: "!" goes before the last letter.
  ASSERT_TRUE(chat->AwaitOutput("user=w\xc3\xb6rl!d\r\n> ")) << chat->output();
  chat->Write("\x1b[A?\r");  // The up arrow brings the line back.
  // The prompt first: what is typed during an answer belongs to no line.
  ASSERT_TRUE(chat->AwaitOutput("user=w\xc3\xb6rl!d?\r\n> ")) << chat->output();
  chat->Write("\x04");
  EXPECT_EQ(chat->Wait(), 0);
}

TEST_F(UpTest, ChatOnATerminalStopsAtOneCtrlCAndLeavesAtTwo) {
  const std::string endpoint = StartedEndpoint();
  const auto chat = Process::OnTerminal({Penstock(), "chat", "--endpoint", endpoint});
  ASSERT_TRUE(chat->AwaitOutput("> "));
  chat->Write("hang\r");
  ASSERT_TRUE(chat->AwaitOutput("hanging"));
  chat->Write("\x03");
  ASSERT_TRUE(chat->AwaitOutput("(Ctrl-C again leaves)\r\n> ")) << chat->output();
  chat->Write("\x03");
  EXPECT_EQ(chat->Wait(), 130);
}

TEST_F(UpTest, ProgressOnATerminalIsOneLineThatIsRedrawn) {
  const ScopedEnvironment temporary("TMPDIR", folder_ + "/tmp");
  const auto up = Process::OnTerminal({Penstock(), "up", "--model", folder_ + "/model", "--port",
                                       "0", "--bin-dir", Fakes(), "--once", "one two"});
  EXPECT_EQ(up->Wait(), 0);
  EXPECT_THAT(up->output(), HasSubstr("\r\033[K"));
  EXPECT_THAT(up->output(), HasSubstr("prefill-0"));
  EXPECT_THAT(up->output(), HasSubstr("one two\r\n"));
  ExpectNothingLeft();
}

}  // namespace
}  // namespace penstock
