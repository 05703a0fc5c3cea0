// Results of `penstock calibrate` and `penstock eval kv` for the bundled model. docs/quality.md has
// the whole table.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "lab/fake/temp_folder.h"
#include "tests/cli/process.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

std::string Source(const std::string& path) { return SourceFolder() + "/" + path; }
std::string Model() { return Source("models/penstock-tiny"); }

struct Outcome {
  int exit_code;
  std::string output, error;
};

Outcome RunPenstock(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), BinaryFolder() + "/penstock");
  Process process(arguments);
  process.CloseInput();
  const int code = process.Wait();
  return {code, process.output(), process.error()};
}

// Threads of other processes may keep a second one from its work.
std::map<std::string, nlohmann::json> Evaluate(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {
      "eval",    "kv", "--model",   Model(), "--text", Source("models/text/held_out.txt"),
      "--seeds", "1",  "--threads", "1",     "--json"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const Outcome outcome = RunPenstock(arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
  std::map<std::string, nlohmann::json> rows;
  const nlohmann::json report = nlohmann::json::parse(outcome.output);
  for (const nlohmann::json& row : report["rows"]) {
    rows[row["codec"]] = row;
  }
  return rows;
}

TEST(Eval, ExactCodecsChangeNothingAndGoalsAreMet) {
  auto rows =
      Evaluate({"--windows", "3",       "--prompts", "0",       "--codec", "lx16",    "--codec",
                "lxr",       "--codec", "i8",        "--codec", "i4r",     "--codec", "int4",
                "--codec",   "cgx1",    "--codec",   "cgx2",    "--codec", "cgx3"});
  ASSERT_EQ(rows.size(), 8u);
  for (const char* exact : {"lx16", "lxr"}) {
    EXPECT_EQ(rows[exact]["kl"]["mean"], 0.0);
    EXPECT_EQ(rows[exact]["same_generation"], 1.0);
  }
  EXPECT_LT(rows["lx16"]["bits_per_element"], 16 / 1.30);
  EXPECT_LT(rows["lxr"]["bits_per_element"], 16 / 1.38);
  EXPECT_GT(rows["i8"]["kl"]["mean"], 0.0);
  EXPECT_LT(rows["i8"]["kl"]["mean"], 1e-4);
  EXPECT_LT(rows["i4r"]["kl"]["mean"], 1e-2);
  for (const char* level : {"cgx1", "cgx2", "cgx3"}) {  // better than plain groups of 4 bits
    EXPECT_LT(rows[level]["bits_per_element"], rows["int4"]["bits_per_element"]) << level;
    EXPECT_LT(rows[level]["kl"]["mean"], rows["int4"]["kl"]["mean"]) << level;
  }
}

// As workers with --kv_format: what prompts compute, and what follows, is in the format.
TEST(Eval, PagesOfAFormat) {
  auto rows = Evaluate({"--windows", "2", "--prompts", "2", "--codec", "pages:bf16", "--codec",
                        "pages:i8", "--codec", "pages:k3v3", "--codec", "pages:k3v2", "--codec",
                        "pages:k3v3+128", "--codec", "pages:k3v3c+128"});
  EXPECT_EQ(rows["pages:bf16"]["kl"]["mean"], 0.0);
  EXPECT_EQ(rows["pages:bf16"]["same_generation"], 1.0);
  EXPECT_EQ(rows["pages:bf16"]["bits_per_element"], 16.0);
  EXPECT_EQ(rows["pages:k3v3"]["bits_per_element"], 3.25);
  EXPECT_EQ(rows["pages:k3v2"]["bits_per_element"], 2.75);
  EXPECT_GT(rows["pages:i8"]["kl"]["mean"], 0.0);
  EXPECT_LT(rows["pages:i8"]["kl"]["mean"], 1e-3);
  EXPECT_LT(rows["pages:i8"]["kl"]["mean"], rows["pages:k3v3"]["kl"]["mean"]);
  EXPECT_LT(rows["pages:k3v3"]["kl"]["mean"], rows["pages:k3v2"]["kl"]["mean"]);
  EXPECT_LT(rows["pages:k3v2"]["kl"]["mean"], 0.2);
  EXPECT_TRUE(rows["pages:k3v2"]["key_error"].is_null());
  EXPECT_LT(rows["pages:k3v3c+128"]["kl"]["mean"], rows["pages:k3v3+128"]["kl"]["mean"]);
  EXPECT_GT(rows["pages:k3v3c+128"]["kl"]["mean"], 0.0);
}

TEST(Eval, EvictionsOfTheAnswer) {
  auto rows = Evaluate({"--windows", "2", "--context", "192", "--continuation", "64", "--prompts",
                        "2", "--codec", "streaming:64+16", "--codec", "h2o:64+16", "--codec",
                        "tova:256+16", "--codec", "h2o:256+16"});
  EXPECT_GT(rows["streaming:64+16"]["kl"]["mean"], 0.0);
  EXPECT_EQ(rows["streaming:64+16"]["recall_question_later"]["128"], 0.0);
  EXPECT_LT(rows["streaming:64+16"]["recall_question_later_change"]["mean"], 0.0);
  EXPECT_LT(rows["streaming:64+16"]["resident_bytes"], rows["tova:256+16"]["resident_bytes"]);
  EXPECT_GT(rows["h2o:64+16"]["kl"]["mean"], 0.0);
  EXPECT_EQ(rows["h2o:64+16"]["resident_bytes"], rows["streaming:64+16"]["resident_bytes"]);
  for (const char* roomy : {"tova:256+16", "h2o:256+16"}) {
    EXPECT_EQ(rows[roomy]["kl"]["mean"], 0.0) << "it has room for all tokens";
    EXPECT_EQ(rows[roomy]["same_generation"], 1.0);
  }
}

TEST(Eval, Blends) {
  auto rows = Evaluate({"--windows", "2", "--context", "400", "--continuation", "32", "--document",
                        "96", "--prompts", "2", "--codec", "blend:naive", "--codec", "blend:moved",
                        "--codec", "blend:30", "--codec", "blend:100"});
  EXPECT_EQ(rows["blend:100"]["kl"]["mean"], 0.0);
  EXPECT_EQ(rows["blend:100"]["key_error"], 0.0);
  EXPECT_EQ(rows["blend:100"]["same_generation"], 1.0);
  EXPECT_LT(rows["blend:30"]["kl"]["mean"], rows["blend:moved"]["kl"]["mean"]);
  EXPECT_LT(rows["blend:moved"]["kl"]["mean"], rows["blend:naive"]["kl"]["mean"]);
  EXPECT_GT(rows["blend:30"]["blend_deviation"], 0.0);
  EXPECT_TRUE(rows["blend:moved"]["blend_deviation"].is_null()) << "nothing is computed again";
  EXPECT_FALSE(rows["blend:30"]["recall"].empty());
  EXPECT_TRUE(rows["blend:30"]["recall_question_later"].empty());
}

TEST(Eval, WhatCannotBeEvaluatedIsNamed) {
  const auto error = [](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"eval",  "kv",     "--model",
                                          Model(), "--text", Source("models/text/held_out.txt")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = RunPenstock(arguments);
    EXPECT_NE(outcome.exit_code, 0);
    return outcome.error;
  };
  EXPECT_THAT(error({"--codec", "h2o:64+129"}), HasSubstr("at most 128 for h2o"));
  EXPECT_THAT(error({"--codec", "nothing"}), HasSubstr("\"nothing\" cannot be evaluated"));
  EXPECT_THAT(error({"--codec", "blend:15", "--document", "8"}), HasSubstr("--document 8"));
}

TEST(Eval, RecallIsTold) {
  auto rows = Evaluate({"--windows", "1", "--prompts", "2", "--codec", "raw"});
  EXPECT_FALSE(rows["raw"]["recall"].empty());
}

TEST(Calibrate, GivesTheBundledFileAgain) {
  const TempFolder temporary;
  const std::filesystem::path folder = temporary.path();
  const std::string made[] = {"kv_calibration.bin", "key_means.safetensors"};
  for (const auto& entry : std::filesystem::directory_iterator(Model())) {
    if (std::ranges::count(made, entry.path().filename().string()) > 0) continue;
    std::filesystem::create_symlink(entry.path(), folder / entry.path().filename());
  }
  const Outcome outcome = RunPenstock(
      {"calibrate", "--model", folder, "--text", Source("models/text/calibration.txt")});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
  EXPECT_NE(outcome.output.find("calibrated on"), std::string::npos) << outcome.output;
  // Kernels of other instruction sets compute other low bits of keys, so only the sizes are equal.
  for (const std::string& name : made) {
    EXPECT_EQ(std::filesystem::file_size(folder / name),
              std::filesystem::file_size(std::filesystem::path(Model()) / name));
  }
}

TEST(Calibrate, SaysWhatIsMissing) {
  const Outcome outcome = RunPenstock({"eval", "kv", "--model", "/nonexistent"});
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_NE(outcome.error.find("/nonexistent"), std::string::npos) << outcome.error;
}

}  // namespace
}  // namespace penstock
