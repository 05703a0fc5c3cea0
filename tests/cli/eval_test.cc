// Results of `penstock calibrate` and `penstock eval kv` for the bundled model. docs/quality.md has
// the whole table.

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "lab/fake/temp_folder.h"
#include "tests/cli/process.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

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

std::map<std::string, nlohmann::json> Evaluate(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"eval",    "kv",     "--model",
                                        Model(),   "--text", Source("models/text/held_out.txt"),
                                        "--seeds", "1",      "--json"};
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
                        "pages:i8", "--codec", "pages:k3v3", "--codec", "pages:k3v2"});
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
}

TEST(Eval, RecallIsTold) {
  auto rows = Evaluate({"--windows", "1", "--prompts", "2", "--codec", "raw"});
  EXPECT_FALSE(rows["raw"]["recall"].empty());
}

TEST(Calibrate, GivesTheBundledFileAgain) {
  const TempFolder temporary;
  const std::filesystem::path folder = temporary.path();
  for (const auto& entry : std::filesystem::directory_iterator(Model())) {
    if (entry.path().filename() == "kv_calibration.bin") continue;
    std::filesystem::create_symlink(entry.path(), folder / entry.path().filename());
  }
  const Outcome outcome = RunPenstock(
      {"calibrate", "--model", folder, "--text", Source("models/text/calibration.txt")});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
  EXPECT_NE(outcome.output.find("calibrated on"), std::string::npos) << outcome.output;
  // Kernels of other instruction sets compute other low bits of keys, so only the sizes are equal.
  EXPECT_EQ(std::filesystem::file_size(folder / "kv_calibration.bin"),
            std::filesystem::file_size(std::filesystem::path(Model()) / "kv_calibration.bin"));
}

TEST(Calibrate, SaysWhatIsMissing) {
  const Outcome outcome = RunPenstock({"eval", "kv", "--model", "/nonexistent"});
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_NE(outcome.error.find("/nonexistent"), std::string::npos) << outcome.error;
}

}  // namespace
}  // namespace penstock
