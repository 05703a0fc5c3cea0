#include "base/rpc/process_info.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "config_test.pb.h"

namespace penstock {
namespace {

bool Has(const ProcessInfo& info, const std::string& name, const std::string& value) {
  return std::ranges::count(info.settings, std::pair(name, value)) == 1;
}

bool Names(const ProcessInfo& info, const std::string& name) {
  return std::ranges::any_of(info.settings, [&](const auto& entry) { return entry.first == name; });
}

TEST(ProcessInfoTest, OperatorsSeeHiddenFieldsOnlyIfTheyAreSet) {
  test::TestConfig config;
  config.set_name("x");
  EXPECT_TRUE(Has(ProcessInfoOf("p", config), "name", "x"));
  EXPECT_FALSE(Names(ProcessInfoOf("p", config), "fault"));
  config.set_fault("landed:kill");
  EXPECT_TRUE(Has(ProcessInfoOf("p", config), "fault", "landed:kill"));
}

TEST(ProcessInfoTest, ListsAreShownAsTheyAreTyped) {
  test::TestConfig config;
  config.add_workers("a:1");
  config.add_workers("b:2");
  config.add_ports(7);
  config.add_ports(8);
  const ProcessInfo info = ProcessInfoOf("p", config);
  EXPECT_TRUE(Has(info, "workers", "a:1,b:2"));
  EXPECT_TRUE(Has(info, "ports", "7,8"));
}

}  // namespace
}  // namespace penstock
