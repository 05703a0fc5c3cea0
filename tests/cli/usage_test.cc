// The messages and exit codes of `penstock` for wrong command lines.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "cli/shell/lab_commands.h"
#include "tests/cli/process.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

struct Outcome {
  int exit_code;
  std::string output;
  std::string error;
};

// A folder of its own, removed with the object.
class TemporaryPath {
 public:
  TemporaryPath() { EXPECT_NE(mkdtemp(path_.data()), nullptr); }
  ~TemporaryPath() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_ = std::filesystem::temp_directory_path() / "penstock-usage-XXXXXX";
};

Outcome RunPenstock(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), BinaryFolder() + "/penstock");
  Process process(arguments);
  const int exit_code = process.Wait();
  return {exit_code, process.output(), process.error()};
}

TEST(Usage, HelpAndVersionSucceedOnStandardOutput) {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"--help"},
                                                    {"--version"},
                                                    {"up", "--help"},
                                                    {"generate", "--help"},
                                                    {"chat", "--help"},
                                                    {"bench", "--help"}}) {
    const Outcome outcome = RunPenstock(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << arguments.front();
    EXPECT_NE(outcome.output, "");
    EXPECT_EQ(outcome.error, "");
  }
}

TEST(Usage, HelpFitsTheScreen) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--help"}, {"up", "--help"}, {"generate", "--help"}}) {
    const std::string help = RunPenstock(arguments).output;
    EXPECT_LE(std::count(help.begin(), help.end(), '\n'), 24);
  }
}

TEST(Usage, ErrorsSayWhatWasMeant) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "Usage: penstock"},
      {{"genrate", "x"}, "genrate is unknown; did you mean generate?"},
      {{"generate"}, "PROMPT is required"},
      {{"generate", "--temprature", "1", "x"}, "did you mean --temperature?"},
      {{"generate", "a", "b"}, "b is unknown"},
      {{"generate", "-n", "two", "x"}, "-n"},
      {{"trace"}, "PROMPT is required"},
      {{"up", "--model"}, "--model"},
      {{"up", "--model", "x", "--prefill", "0"}, "1 to 64"},
      {{"up", "--model", "x", "--kv_memory", "12"}, "has no unit; write 12MiB"},
      {{"up", "--model", "x", "--block-tokens", "17"}, "{16,32,64}"},
      {{"up", "--model", "x", "--kv-format", "i9"}, "bf16, f8, i8, i4r, k8v4, k3v3 or k3v2"},
      {{"up", "--model", "x", "--port", "70000"}, "--port"},
      {{"simulat"}, "simulat is unknown; did you mean simulate?"},
      {{"bench", "everything"}, "kernels"},
      {{"bench", "serve", "--rat", "1"},
       "penstock bench serve: --rat is unknown; did you mean --rate?"}};
  for (const auto& [arguments, words] : cases) {
    const Outcome outcome = RunPenstock(arguments);
    EXPECT_EQ(outcome.exit_code, 64) << words;
    EXPECT_THAT(outcome.error, HasSubstr(words));
    EXPECT_EQ(outcome.output, "");
  }
}

TEST(Usage, LabCommandsRunInPenstockLab) {
  const std::string help = RunPenstock({"--help"}).output;
  for (const LabCommand& command : kLabCommands) {
    const std::string name(command.name);
    EXPECT_THAT(help, HasSubstr(fmt::format("\n  {:<26}{}\n", name, command.summary)));
    const Outcome outcome = RunPenstock({name, "--help"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
    EXPECT_THAT(outcome.output, HasSubstr(fmt::format("penstock {}: {}\n", name, command.summary)));
  }
}

// A copy of the program alone in a folder, and no PATH to look in.
TEST(Usage, WithoutPenstockLabItsCommandsSayWhereItIs) {
  const TemporaryPath folder;
  const std::string penstock = folder.path() + "/penstock";
  std::filesystem::copy_file(TestEnvironment("PENSTOCK_BIN_DIR") + "/penstock", penstock);
  for (const LabCommand& command : kLabCommands) {
    Process process({penstock, std::string(command.name)}, {{"PATH", "/nowhere"}});
    EXPECT_EQ(process.Wait(), 69);
    EXPECT_THAT(process.error(), HasSubstr("the package penstock-lab"));
  }
}

TEST(Usage, AModelThatIsNotThereIsNoInput) {
  const Outcome outcome = RunPenstock({"up", "--model", "/nowhere"});
  EXPECT_EQ(outcome.exit_code, 66);
  EXPECT_THAT(outcome.error, HasSubstr("--model=/nowhere"));
  EXPECT_EQ(RunPenstock({"up", "--model", "/"}).exit_code, 66);
}

TEST(Usage, NoServerSaysHowToStartOne) {
  // Port 1 is reserved and nothing listens there.
  const Outcome text = RunPenstock({"generate", "--endpoint", "127.0.0.1:1", "x"});
  EXPECT_EQ(text.exit_code, 69);
  EXPECT_THAT(text.error, HasSubstr("no server at 127.0.0.1:1: start one with `penstock up"));
  const Outcome json = RunPenstock({"generate", "--json", "--endpoint", "127.0.0.1:1", "x"});
  EXPECT_EQ(json.exit_code, 69);
  EXPECT_THAT(json.output, HasSubstr(R"({"type":"error","code":"UNAVAILABLE")"));
}

TEST(Usage, APromptThatIsNotTextIsBadData) {
  const Outcome outcome = RunPenstock({"generate", "--endpoint", "127.0.0.1:1", "\xff\xfe"});
  EXPECT_EQ(outcome.exit_code, 65);
  EXPECT_THAT(outcome.error, HasSubstr("not UTF-8"));
}

}  // namespace
}  // namespace penstock
