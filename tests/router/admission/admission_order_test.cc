#include "router/admission/admission_order.h"

#include <gtest/gtest.h>

#include <vector>

namespace penstock {
namespace {

TEST(AdmissionOrder, ATenantWithManyDelaysAnotherByOneTurn) {
  AdmissionOrder order(100);
  std::vector<AdmissionTicket> greedy;
  for (int i = 0; i < 50; ++i) {
    greedy.push_back(order.Enter("greedy", 0, 100));
    ASSERT_TRUE(order.Enqueue(greedy.back()));
  }
  const AdmissionTicket modest = order.Enter("modest", 0, 100);
  ASSERT_TRUE(order.Enqueue(modest));
  EXPECT_TRUE(order.MustWait(modest)) << "the greedy one's first came before";
  order.OnPlaced(greedy[0]);
  EXPECT_FALSE(order.MustWait(modest));
  EXPECT_TRUE(order.MustWait(greedy[1]));
}

TEST(AdmissionOrder, PriorityComesBeforeTurns) {
  AdmissionOrder order(100);
  const AdmissionTicket early = order.Enter("a", 0, 10);
  ASSERT_TRUE(order.Enqueue(early));
  const AdmissionTicket urgent = order.Enter("b", 5, 10'000);
  EXPECT_FALSE(order.MustWait(urgent));
  ASSERT_TRUE(order.Enqueue(urgent));
  EXPECT_TRUE(order.MustWait(early));
  order.Remove(urgent);
  EXPECT_FALSE(order.MustWait(early));
}

TEST(AdmissionOrder, IsBoundedAndATicketWaitsOnce) {
  AdmissionOrder order(2);
  const AdmissionTicket a = order.Enter("a", 0, 1);
  ASSERT_TRUE(order.Enqueue(a));
  ASSERT_TRUE(order.Enqueue(order.Enter("b", 0, 1)));
  EXPECT_FALSE(order.Enqueue(order.Enter("c", 0, 1)));
  EXPECT_TRUE(order.Enqueue(a));
  EXPECT_EQ(order.waiting(), 2u);
  order.OnPlaced(a);
  EXPECT_TRUE(order.Enqueue(order.Enter("c", 0, 1)));
}

// Served by turns, each tenant gets the same tokens whatever the sizes of its requests.
TEST(AdmissionOrder, SharesByTokens) {
  AdmissionOrder order(10'000);
  std::set<std::pair<AdmissionTicket, int>> waiting;
  for (int i = 0; i < 1000; ++i) waiting.insert({order.Enter("small", 0, 10), 10});
  for (int i = 0; i < 100; ++i) waiting.insert({order.Enter("large", 0, 100), 100});
  double small = 0;
  double large = 0;
  for (auto it = waiting.begin(); small + large < 8000; ++it) {
    (it->second == 10 ? small : large) += it->second;
    order.OnPlaced(it->first);
  }
  EXPECT_NEAR(small / large, 1, 0.05);
}

}  // namespace
}  // namespace penstock
