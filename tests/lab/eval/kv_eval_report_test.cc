#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lab/eval/kv_eval.h"
#include "lab/fake/temp_folder.h"
#include "tests/support/files.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

KvEvalReport ReportOf(std::vector<KvQuality> rows) {
  KvEvalReport report;
  report.recall = {{64, 1.0}, {128, 0.75}};
  report.rows = std::move(rows);
  return report;
}

KvQuality Row(const std::string& name) {
  KvQuality row;
  row.codec = name;
  row.recall = {{64, 1.0}, {128, 0.5}};
  row.recall_change = {-0.125, 0.05};
  return row;
}

TEST(KvEvalReport, HasTheColumnsOfEachKind) {
  KvQuality later = Row("tova:64+32"), blend = Row("blend:15");
  later.recall_later = {{64, 0.25}, {128, 0.0}};
  blend.blend_deviation = 0.154;
  const KvEvalReport report = ReportOf({Row("i8"), later, blend});
  const std::string text = ToText(report);
  EXPECT_THAT(text, HasSubstr("exact"));
  EXPECT_THAT(text, HasSubstr("  -0.125 ±0.050\n"));
  EXPECT_THAT(text, HasSubstr("later  0.25  0.00"));
  EXPECT_THAT(text, HasSubstr("deviation 0.154"));
  const nlohmann::json json = nlohmann::json::parse(ToJson(report));
  EXPECT_EQ(json["recall"]["128"], 0.75);
  EXPECT_EQ(json["rows"][0]["recall_change"]["mean"], -0.125);
  EXPECT_TRUE(json["rows"][0]["recall_question_later"].empty());
  EXPECT_EQ(json["rows"][1]["recall_question_later"]["64"], 0.25);
  EXPECT_TRUE(json["rows"][1]["blend_deviation"].is_null());
}

TEST(KvEvalReport, ThePlotHasAllMethods) {
  const TempFolder folder;
  const std::string path = folder.path() + "/plot.svg";
  KvQuality selection = Row("quest:128");
  selection.bits_per_element = 17;
  ASSERT_TRUE(WritePlot(ReportOf({Row("lx16"), selection}), path).ok());
  const std::string svg = ReadFile(path);
  EXPECT_THAT(svg, HasSubstr("quest:128"));
  EXPECT_THAT(svg, HasSubstr("lx16"));
  EXPECT_THAT(svg, HasSubstr("Numbers told"));
  KvEvalReport without = ReportOf({Row("lx16")});
  without.recall.clear();
  ASSERT_TRUE(WritePlot(without, path).ok());
  EXPECT_THAT(ReadFile(path), Not(HasSubstr("Numbers told")));
}

}  // namespace
}  // namespace penstock
