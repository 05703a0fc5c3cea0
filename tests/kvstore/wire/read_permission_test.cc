#include "kvstore/wire/same_host/read_permission.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <optional>

namespace penstock {
namespace {

constexpr unsigned long kNobody = 0;

TEST(ReadPermissionTest, NamesTheOnlyReaderAndNobodyWithoutOne) {
  unsigned long permitted = 99;
  ReadPermission permission([&](unsigned long readers) { permitted = readers; });
  {
    const ReadPermission::Grant first(permission, 12), again(permission, 12);
    EXPECT_EQ(permitted, 12u);
  }
  EXPECT_EQ(permitted, kNobody);
}

TEST(ReadPermissionTest, PermitsAllOnlyWhileThereAreSeveral) {
  unsigned long permitted = 99;
  ReadPermission permission([&](unsigned long readers) { permitted = readers; });
  std::optional<ReadPermission::Grant> first, second, unknown;
  first.emplace(permission, 12);
  second.emplace(permission, 13);
  EXPECT_EQ(permitted, PR_SET_PTRACER_ANY);
  first.reset();
  EXPECT_EQ(permitted, 13u);
  second.reset();
  EXPECT_EQ(permitted, kNobody);
  unknown.emplace(permission, 0);
  EXPECT_EQ(permitted, PR_SET_PTRACER_ANY);
}

}  // namespace
}  // namespace penstock
