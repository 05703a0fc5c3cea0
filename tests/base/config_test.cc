#include "base/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <list>

#include "config_test.pb.h"
#include "lab/fake/temp_folder.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

using test::TestConfig;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const ProgramInfo kProgram = {.name = "penstock-test", .summary = "tests the configuration"};

class ConfigTest : public ::testing::Test {
 protected:
  void SetEnvironment(const std::string& name, const std::string& value) {
    environment_.emplace_front(name, value);
  }

  std::string WriteFile(const std::string& text) { return folder_.Write("config", text); }

  // With the one needed field given.
  absl::StatusOr<TestConfig> Load(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "--name=x");
    TestConfig config;
    RETURN_IF_ERROR(FillConfig(arguments, kProgram, config));
    return config;
  }

  std::string ErrorOf(std::vector<std::string> arguments, absl::StatusCode code) {
    const absl::StatusOr<TestConfig> config = Load(std::move(arguments));
    EXPECT_EQ(config.status().code(), code) << config.status();
    return Message(config.status());
  }
  std::string UsageError(std::vector<std::string> arguments) {
    return ErrorOf(std::move(arguments), absl::StatusCode::kInvalidArgument);
  }
  std::string FileError(const std::string& text) {
    return ErrorOf({"--config=" + WriteFile(text)}, absl::StatusCode::kFailedPrecondition);
  }

 private:
  std::list<ScopedEnvironment> environment_;  // The last is restored first.
  const TempFolder folder_;
};

TEST_F(ConfigTest, AProgramMayHaveItsOwnInitialValues) {
  ProgramInfo program = kProgram;
  program.defaults = {{"batch", "13"}};
  TestConfig config;
  ASSERT_TRUE(FillConfig({"--name=x"}, program, config).ok());
  EXPECT_EQ(config.batch(), 13u);
  ASSERT_TRUE(FillConfig({"--name=x", "--batch=14"}, program, config).ok());
  EXPECT_EQ(config.batch(), 14u);
  EXPECT_THAT(Message(FillConfig({"--help"}, program, config)), HasSubstr("[13]"));
}

TEST_F(ConfigTest, StartsFromTheInitialValues) {
  const auto config = Load({});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->kv_memory(), "512MiB");
  EXPECT_EQ(config->batch(), 64u);
  EXPECT_EQ(config->ratio(), 0.5);
  EXPECT_EQ(config->wire(), "auto");
  EXPECT_EQ(config->block_tokens(), 16u);
  EXPECT_FALSE(config->insecure());
}

TEST_F(ConfigTest, TakesFlagsInEveryForm) {
  const auto config =
      Load({"--kv-memory", "1GiB", "--batch=8", "--insecure", "--offset=-3",
            "--large=18446744073709551615", "--ratio", "1.25", "--block_tokens=32"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->kv_memory(), "1GiB");
  EXPECT_EQ(config->batch(), 8u);
  EXPECT_TRUE(config->insecure());
  EXPECT_EQ(config->offset(), -3);
  EXPECT_EQ(config->large(), 18446744073709551615u);
  EXPECT_EQ(config->ratio(), 1.25);
  EXPECT_EQ(config->block_tokens(), 32u);
}

TEST_F(ConfigTest, ListsByCommaAndByRepetition) {
  const auto config = Load({"--workers=a:1, b:2", "--workers", "c:3", "--ports=1,2,3"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->workers(), ElementsAre("a:1", "b:2", "c:3"));
  EXPECT_THAT(config->ports(), ElementsAre(1, 2, 3));
}

TEST_F(ConfigTest, TheLastOfARepeatedScalarCounts) {
  const auto config = Load({"--batch=1", "--batch=2"});
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->batch(), 2u);
}

TEST_F(ConfigTest, FlagWinsOverEnvironmentOverFileOverInitial) {
  const std::string file = WriteFile("batch: 2\nratio: 0.25\nwire: tcp\nworkers: [a:1, b:2]\n");
  SetEnvironment("PENSTOCK_BATCH", "3");
  SetEnvironment("PENSTOCK_RATIO", "0.75");
  SetEnvironment("PENSTOCK_WORKERS", "c:3");
  const auto config = Load({"--config", file, "--batch=4"});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->batch(), 4u);
  EXPECT_EQ(config->ratio(), 0.75);
  EXPECT_EQ(config->wire(), "tcp");
  EXPECT_THAT(config->workers(), ElementsAre("c:3"));
  EXPECT_EQ(config->kv_memory(), "512MiB");
}

TEST_F(ConfigTest, ReadsJson) {
  const std::string file = WriteFile(
      R"({"batch": 7, "insecure": true, "workers": ["a:1", "b:2"], "kv-memory": "2GiB"})");
  const auto config = Load({"--config=" + file});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->batch(), 7u);
  EXPECT_TRUE(config->insecure());
  EXPECT_THAT(config->workers(), ElementsAre("a:1", "b:2"));
  EXPECT_EQ(config->kv_memory(), "2GiB");
}

TEST_F(ConfigTest, TakesTheFileFromTheEnvironment) {
  SetEnvironment("PENSTOCK_CONFIG", WriteFile("batch: 9"));
  const auto config = Load({});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->batch(), 9u);
}

TEST_F(ConfigTest, UnknownFlagsSayWhatWasMeant) {
  EXPECT_THAT(UsageError({"--kv-memroy=1GiB"}), HasSubstr("did you mean --kv_memory?"));
  EXPECT_THAT(UsageError({"--hlep"}), HasSubstr("did you mean --help?"));
  EXPECT_THAT(UsageError({"--zzzzzzzzzz=1"}), HasSubstr("--help lists"));
  EXPECT_THAT(UsageError({"stray"}), HasSubstr("`stray` is not an option"));
  EXPECT_THAT(UsageError({"--batch"}), HasSubstr("write --batch=VALUE"));
}

TEST_F(ConfigTest, WrongValuesNameTheLimit) {
  EXPECT_EQ(UsageError({"--batch=513"}), "--batch=513 is out of range; allowed are 1 to 512");
  EXPECT_EQ(UsageError({"--batch=0"}), "--batch=0 is out of range; allowed are 1 to 512");
  EXPECT_EQ(UsageError({"--batch=-1"}), "--batch=-1 is not a whole number; allowed are 1 to 512");
  EXPECT_THAT(UsageError({"--batch=99999999999"}), HasSubstr("out of range"));
  EXPECT_THAT(UsageError({"--batch=eight"}), HasSubstr("not a whole number"));
  EXPECT_THAT(UsageError({"--batch="}), HasSubstr("not a whole number"));
  EXPECT_THAT(UsageError({"--ratio=nan"}), HasSubstr("not a number"));
  EXPECT_THAT(UsageError({"--insecure=maybe"}),
              HasSubstr("is not a boolean; allowed are true and false"));
  EXPECT_EQ(UsageError({"--wire=rdma"}), "--wire=rdma is unknown; allowed are auto, tcp, shm");
  EXPECT_EQ(UsageError({"--block_tokens=17"}),
            "--block_tokens=17 is unknown; allowed are 16, 32, 64");
  EXPECT_THAT(UsageError({"--kv_memory=512"}), HasSubstr("write 512MiB"));
  EXPECT_THAT(UsageError({"--ports=1,x"}), HasSubstr("--ports=1,x"));
}

TEST_F(ConfigTest, WrongFilesNameThePlace) {
  EXPECT_THAT(FileError("batch: 8\nbtach: 9\n"),
              HasSubstr(":2:1: btach is unknown; did you mean batch?"));
  EXPECT_THAT(FileError("batch: many\n"), HasSubstr(":1:1: batch=many is not a whole number"));
  EXPECT_THAT(FileError("batch: [1, 2]\n"), HasSubstr("has a list; allowed is one value"));
  EXPECT_THAT(FileError("batch: {a: 1}\n"), HasSubstr("expected a value or a list"));
  EXPECT_THAT(FileError("workers: [[a]]\n"), HasSubstr("a list of plain values"));
  EXPECT_THAT(FileError("batch: 1\nbatch: 2\n"), HasSubstr("set twice"));
  EXPECT_THAT(FileError("- batch\n"), HasSubstr("`name: value` lines"));
  EXPECT_THAT(FileError("batch: [1\n"), HasSubstr(":2:"));
  EXPECT_THAT(FileError("batch: ~\n"), HasSubstr("expected a value or a list"));
}

TEST_F(ConfigTest, AMissingFileIsNotFound) {
  EXPECT_THAT(ErrorOf({"--config=/nowhere/at-all.yaml"}, absl::StatusCode::kNotFound),
              HasSubstr("/nowhere/at-all.yaml"));
}

TEST_F(ConfigTest, AnEmptyFileSaysNothing) {
  EXPECT_TRUE(Load({"--config=" + WriteFile("")}).ok());
}

TEST_F(ConfigTest, WrongEnvironmentNamesTheVariable) {
  SetEnvironment("PENSTOCK_BATCH", "many");
  EXPECT_THAT(ErrorOf({}, absl::StatusCode::kFailedPrecondition), HasSubstr("PENSTOCK_BATCH=many"));
}

constexpr RenamedField kRenamed[] = {{"penstock.test.TestConfig", "batch_most", "batch"},
                                     {"penstock.test.OtherConfig", "port_list", "ports"}};

class RenamedFieldTest : public ConfigTest {
 protected:
  absl::Status Fill(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "--name=x");
    ProgramInfo program = kProgram;
    program.renamed = kRenamed;
    return FillConfig(arguments, program, config_, &warnings_);
  }

  TestConfig config_;
  std::vector<std::string> warnings_;
};

TEST_F(RenamedFieldTest, AnOldFlagSetsTheNewFieldWithOneWarning) {
  for (const std::string flag : {"--batch_most=7", "--batch-most=7"}) {
    ASSERT_TRUE(Fill({flag, flag}).ok());
    EXPECT_EQ(config_.batch(), 7u);
    EXPECT_THAT(warnings_, ElementsAre(flag.substr(0, 12) + " was renamed to --batch; the next "
                                                            "release removes the old name"));
  }
  ASSERT_TRUE(Fill({"--batch=8"}).ok());
  EXPECT_EQ(config_.batch(), 8u);
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(RenamedFieldTest, OldNamesWorkInTheEnvironmentAndTheFile) {
  ASSERT_TRUE(Fill({"--config=" + WriteFile("batch-most: 9\n")}).ok());
  EXPECT_EQ(config_.batch(), 9u);
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("batch-most was renamed to batch;")));
  SetEnvironment("PENSTOCK_BATCH_MOST", "10");
  ASSERT_TRUE(Fill({}).ok());
  EXPECT_EQ(config_.batch(), 10u);
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("PENSTOCK_BATCH_MOST was renamed to "
                                               "PENSTOCK_BATCH;")));
}

TEST_F(RenamedFieldTest, MisspeltVariablesAreNamed) {
  SetEnvironment("PENSTOCK_BATHC", "10");
  SetEnvironment("PENSTOCK_SERVICE_PORT_HTTP", "8000");
  ASSERT_TRUE(Fill({}).ok());
  EXPECT_THAT(warnings_, ElementsAre("PENSTOCK_BATHC in the environment sets nothing; is it "
                                     "PENSTOCK_BATCH?"));
}

TEST_F(RenamedFieldTest, AFlagWinsOverAnOldNameInTheEnvironment) {
  SetEnvironment("PENSTOCK_BATCH_MOST", "10");
  ASSERT_TRUE(Fill({"--batch=11"}).ok());
  EXPECT_EQ(config_.batch(), 11u);
  EXPECT_EQ(warnings_.size(), 1u);
}

TEST_F(RenamedFieldTest, BothNamesInOnePlaceAreRefused) {
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{"--batch=1", "--batch_most=2"}, {"--batch_most=2", "--batch=1"}}) {
    const absl::Status status = Fill(flags);
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_EQ(Message(status),
              "--batch_most is the old name of --batch, and both are set: remove --batch_most");
  }
  const absl::Status file = Fill({"--config=" + WriteFile("batch: 1\nbatch_most: 2\n")});
  EXPECT_TRUE(absl::IsFailedPrecondition(file));
  EXPECT_THAT(Message(file), HasSubstr("batch_most is the old name of batch, and both are set"));
  SetEnvironment("PENSTOCK_BATCH", "1");
  SetEnvironment("PENSTOCK_BATCH_MOST", "2");
  const absl::Status environment = Fill({});
  EXPECT_TRUE(absl::IsFailedPrecondition(environment));
  EXPECT_THAT(Message(environment), HasSubstr("remove PENSTOCK_BATCH_MOST"));
}

TEST_F(RenamedFieldTest, AnOldValueHasTheNewFieldsLimits) {
  EXPECT_EQ(Message(Fill({"--batch_most=513"})),
            "--batch=513 is out of range; allowed are 1 to 512");
}

TEST_F(RenamedFieldTest, OldNamesBelongToOneMessage) {
  EXPECT_THAT(Message(Fill({"--port_list=1"})), HasSubstr("--port_list is unknown"));
}

TEST_F(ConfigTest, WhatIsNeededIsAskedFor) {
  TestConfig config;
  const absl::Status status = FillConfig({}, kProgram, config);
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_EQ(Message(status), "--name is required: what it is called");
}

TEST_F(ConfigTest, HelpNamesEveryFieldItsDefaultAndItsLimits) {
  const std::string help = ErrorOf({"--help"}, absl::StatusCode::kCancelled);
  EXPECT_THAT(help, HasSubstr("Usage: penstock-test --name=TEXT [options]"));
  EXPECT_THAT(help, HasSubstr("size of the pool [512MiB]"));
  EXPECT_THAT(help, HasSubstr("1 to 512 [64]"));
  EXPECT_THAT(help, HasSubstr(": auto, tcp, shm [auto]"));
  EXPECT_THAT(help, HasSubstr("--workers=A,B,.."));
  EXPECT_THAT(help, Not(HasSubstr("--insecure=")));
  for (int i = 0; i < TestConfig::descriptor()->field_count(); ++i) {
    const std::string& name = TestConfig::descriptor()->field(i)->name();
    EXPECT_EQ(help.find("--" + name) != std::string::npos, name != "fault") << name;
  }
  size_t line = 0;
  for (const char c : help) {
    line = c == '\n' ? 0 : line + 1;
    EXPECT_LE(line, 100u);
  }
}

TEST_F(ConfigTest, ExitCodesFollowTheKindOfError) {
  EXPECT_EQ(ReportConfig(absl::OkStatus(), kProgram), ExitCode::kOk);
  EXPECT_EQ(ReportConfig(InvalidArgument("a flag"), kProgram), ExitCode::kUsage);
  EXPECT_EQ(ReportConfig(FailedPrecondition("a file"), kProgram), ExitCode::kBadConfig);
  EXPECT_EQ(ReportConfig(NotFound("no file"), kProgram), ExitCode::kNoInput);
  EXPECT_EQ(ReportConfig(Cancelled("--help"), kProgram), ExitCode::kOk);
}

TEST_F(ConfigTest, DescribesWhatIsSet) {
  const auto config = Load({"--workers=a:1,b:2", "--insecure"});
  ASSERT_TRUE(config.ok());
  const std::string text = DescribeConfig(*config);
  EXPECT_THAT(text, HasSubstr("workers=a:1,b:2"));
  EXPECT_THAT(text, HasSubstr("insecure=true"));
  EXPECT_THAT(text, HasSubstr("kv_memory=512MiB"));
}

}  // namespace
}  // namespace penstock
