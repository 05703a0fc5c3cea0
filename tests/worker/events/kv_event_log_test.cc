#include "worker/events/kv_event_log.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

TEST(KvEventLogTest, NumbersCountFromZero) {
  KvEventLog log;
  EXPECT_EQ(log.Find(0), nullptr);
  EXPECT_EQ(log.Append("a").sequence, 0u);
  EXPECT_EQ(log.Append("b").sequence, 1u);
  EXPECT_EQ(*log.Find(0)->payload, "a");
  EXPECT_EQ(*log.Find(1)->payload, "b");
  EXPECT_EQ(log.Find(2), nullptr);
  EXPECT_EQ(log.Find(UINT64_MAX), nullptr);
  EXPECT_EQ(log.next(), 2u);
}

TEST(KvEventLogTest, TheOldestGoWhenThereAreTooMany) {
  KvEventLog log(/*batches_max=*/3);
  for (int i = 0; i < 10; ++i) log.Append(std::to_string(i));
  EXPECT_EQ(log.Find(0)->sequence, 7u);
  EXPECT_EQ(log.Find(8)->sequence, 8u);
  EXPECT_EQ(log.bytes(), 3u);
}

TEST(KvEventLogTest, TheOldestGoWhenTheyAreTooLarge) {
  KvEventLog log(/*batches_max=*/100, /*bytes_max=*/10);
  for (int i = 0; i < 5; ++i) log.Append("1234");
  EXPECT_EQ(log.Find(0)->sequence, 3u);
  EXPECT_EQ(log.bytes(), 8u);
  log.Append(std::string(50, 'x'));  // More than all: it is kept alone.
  EXPECT_EQ(log.Find(0)->sequence, 5u);
  EXPECT_EQ(log.bytes(), 50u);
}

// A connection still sends what the log has dropped.
TEST(KvEventLogTest, APayloadLivesAsLongAsItsReaders) {
  KvEventLog log(/*batches_max=*/1);
  const auto payload = log.Append("first").payload;
  log.Append("second");
  EXPECT_EQ(*payload, "first");
}

}  // namespace
}  // namespace penstock
