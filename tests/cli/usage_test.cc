// What `penstock` says to a wrong command line, and with which exit code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
      {{"up"}, "--model is required"},
      {{"up", "--model", "x", "--prefill", "0"}, "1 to 64"},
      {{"up", "--model", "x", "--kv_memory", "12"}, "has no unit: write 12MiB"},
      {{"up", "--model", "x", "--block-tokens", "17"}, "{16,32,64}"},
      {{"up", "--model", "x", "--kv-format", "i9"}, "{bf16,f8,i8,i4r,k8v4}"},
      {{"up", "--model", "x", "--port", "70000"}, "--port"},
      {{"bench", "everything"}, "kernels"}};
  for (const auto& [arguments, words] : cases) {
    const Outcome outcome = RunPenstock(arguments);
    EXPECT_EQ(outcome.exit_code, 64) << words;
    EXPECT_THAT(outcome.error, HasSubstr(words));
    EXPECT_EQ(outcome.output, "");
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
