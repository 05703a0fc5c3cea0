#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "lab/report/report.h"

namespace penstock {
namespace {

const std::vector<BenchRow> kRows = {
    {.name = "decode_b1_1b", .value = 16.5, .unit = "tokens/s", .limit = 17, .fraction = 0.97},
    {.name = "ratio \"quoted\"", .value = 0.25, .unit = "ratio", .limit = 1, .fraction = 0.25}};

TEST(BenchReportTest, JsonHasTheStableKeys) {
  const auto json = nlohmann::json::parse(ToJson("kernels", "a machine", kRows));
  EXPECT_EQ(json["bench"], "kernels");
  EXPECT_EQ(json["machine"], "a machine");
  ASSERT_EQ(json["rows"].size(), 2u);
  EXPECT_EQ(json["rows"][0]["name"], "decode_b1_1b");
  EXPECT_EQ(json["rows"][0]["value"], 16.5);
  EXPECT_EQ(json["rows"][0]["unit"], "tokens/s");
  EXPECT_EQ(json["rows"][0]["limit"], 17);
  EXPECT_EQ(json["rows"][0]["fraction"], 0.97);
  EXPECT_EQ(json["rows"][1]["name"], "ratio \"quoted\"");
}

TEST(BenchReportTest, TextHasALineForEveryRow) {
  const std::string text = ToText("kernels", "a machine", kRows);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
  EXPECT_NE(text.find("decode_b1_1b"), std::string::npos);
  EXPECT_NE(text.find("0.970"), std::string::npos);
}

TEST(BenchReportTest, MachineNamesItsInstructionSet) {
  EXPECT_NE(MachineName().find("CPUs"), std::string::npos);
}

}  // namespace
}  // namespace penstock
