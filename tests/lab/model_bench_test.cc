#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "lab/micro/model.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

using testing::HasSubstr;

absl::StatusOr<std::vector<BenchRow>> Measure(const std::string& model, int rounds) {
  return RunModelBench({.model = model, .threads = 2, .rounds = rounds}, [](const std::string&) {});
}

TEST(ModelBenchTest, GivesRatesWithTheirRangeAndTheLimitOfDecoding) {
  const auto rows = Measure(ModelFolder(), 4);
  ASSERT_TRUE(rows.ok()) << rows.status();
  std::map<std::string, BenchRow> found;
  for (const BenchRow& row : *rows) found[row.name] = row;
  ASSERT_EQ(found.size(), 9u);
  for (const std::string name : {"prefill_512", "decode_128"}) {
    EXPECT_GT(found[name + "_min"].value, 0) << name;
    EXPECT_LE(found[name + "_min"].value, found[name].value) << name;
    EXPECT_LE(found[name].value, found[name + "_max"].value) << name;
  }
  const BenchRow& decode = found["decode_128"];
  EXPECT_NEAR(decode.limit, found["read_bandwidth"].value / found["weights"].value,
              1e-6 * decode.limit);
  EXPECT_NEAR(decode.fraction, decode.value / decode.limit, 1e-9);
  EXPECT_EQ(found["prefill_512"].limit, 0);
  EXPECT_EQ(found["threads"].value, 2);
}

// Layers of 256 * (256 + 128 + 128) + 256 * 256 + 3 * 256 * 512 weights, five times, and an output
// matrix of 2048 * 256, of two bytes each.
TEST(ModelBenchTest, CountsTheBytesOfAStep) {
  const auto rows = Measure(ModelFolder(), 1);
  ASSERT_TRUE(rows.ok()) << rows.status();
  const auto weights = std::ranges::find(*rows, std::string("weights"), &BenchRow::name);
  ASSERT_NE(weights, rows->end());
  EXPECT_NEAR(weights->value, 2e-9 * (5 * 589824 + 524288), 3e-4);
}

TEST(ModelBenchTest, NamesAModelThatIsNotThere) {
  const auto rows = Measure("/nowhere/model.gguf", 1);
  EXPECT_THAT(rows.status().message(), HasSubstr("/nowhere/model.gguf"));
}

}  // namespace
}  // namespace penstock
