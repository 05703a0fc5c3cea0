#include "router/api/json_text.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace penstock {
namespace {

std::string At(std::string_view json, std::vector<std::string_view> keys) {
  return std::string(JsonTextAt(json, keys).value_or("none"));
}

TEST(JsonText, FindsAMemberAsTheClientWroteIt) {
  const std::string body =
      R"( {"a" : [1, {"b": "]}"}], "x": {"z":1 , "y" : { "q":"\\"}, "w":true}, "n": -1.5e3 } )";
  EXPECT_EQ(At(body, {"x", "y"}), R"({ "q":"\\"})");
  EXPECT_EQ(At(body, {"x"}), R"({"z":1 , "y" : { "q":"\\"}, "w":true})");
  EXPECT_EQ(At(body, {"a"}), R"([1, {"b": "]}"}])");
  EXPECT_EQ(At(body, {"x", "w"}), "true");
  EXPECT_EQ(At(body, {"n"}), "-1.5e3");
  EXPECT_EQ(At(body, {"b"}), "none");
  EXPECT_EQ(At(body, {"a", "b"}), "none");
  EXPECT_EQ(At(R"({"k": "\"", "s": "x"})", {"s"}), R"("x")");
  EXPECT_EQ(At("{}", {"s"}), "none");
  EXPECT_EQ(At("[]", {"s"}), "none");
}

}  // namespace
}  // namespace penstock
