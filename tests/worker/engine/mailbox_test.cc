#include "worker/engine/mailbox.h"

#include <gtest/gtest.h>

#include <memory>

namespace penstock {
namespace {

using Job = std::unique_ptr<int>;

bool Add(Mailbox<Job>& mailbox, Job& job) { return mailbox.TryAdd(std::move(job)); }

TEST(Mailbox, KeepsTheOrderOfJobsAndCancels) {
  const HandoffKey key{1, 0, 1};
  Mailbox<Job> mailbox(8);
  mailbox.Cancel(key);  // of an earlier call
  EXPECT_TRUE(mailbox.TryAdd(std::make_unique<int>(7)));
  mailbox.Cancel(key);
  const auto mail = mailbox.Take(Duration::zero());
  ASSERT_EQ(mail.size(), 3u);
  EXPECT_EQ(std::get<HandoffKey>(mail[0]), key);
  EXPECT_EQ(*std::get<Job>(mail[1]), 7);
  EXPECT_EQ(std::get<HandoffKey>(mail[2]), key);
  EXPECT_TRUE(mailbox.Take(Duration::zero()).empty());
}

TEST(Mailbox, LimitsJobsAndNotCancels) {
  Mailbox<Job> mailbox(1);
  mailbox.Cancel({1, 0, 1});
  EXPECT_TRUE(mailbox.TryAdd(std::make_unique<int>(1)));
  Job second = std::make_unique<int>(2);
  EXPECT_FALSE(Add(mailbox, second));
  EXPECT_EQ(*second, 2);
  mailbox.Cancel({1, 0, 2});
  EXPECT_EQ(mailbox.Take(Duration::zero()).size(), 3u);
  EXPECT_TRUE(Add(mailbox, second));
}

TEST(Mailbox, RefusesNewMailOnceClosed) {
  Mailbox<Job> mailbox(2);
  EXPECT_TRUE(mailbox.TryAdd(std::make_unique<int>(1)));
  mailbox.Close();
  EXPECT_FALSE(mailbox.TryAdd(std::make_unique<int>(2)));
  mailbox.Cancel({1, 0, 1});
  EXPECT_EQ(mailbox.Take(std::chrono::hours(1)).size(), 1u);
}

}  // namespace
}  // namespace penstock
