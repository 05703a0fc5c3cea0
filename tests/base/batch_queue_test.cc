#include "base/batch_queue.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace penstock {
namespace {

struct Words {
  std::vector<std::string> words;
  void Clear() { words.clear(); }
};

TEST(BatchQueue, WhatComesWhileOneIsSentGoesIntoTheNext) {
  BatchQueue<Words> queue(10);
  EXPECT_TRUE(queue.empty());
  queue.Add(1).words.push_back("a");
  queue.Add(1).words.push_back("b");
  ASSERT_TRUE(queue.waiting());
  const Words& sent = queue.Send();
  queue.Add(1).words.push_back("c");
  queue.Add(1).words.push_back("d");
  EXPECT_EQ(sent.words, (std::vector<std::string>{"a", "b"})) << "is not touched while it is sent";
  queue.OnSent();
  EXPECT_FALSE(queue.sending());
  EXPECT_EQ(queue.Send().words, (std::vector<std::string>{"c", "d"}));
  queue.OnSent();
  EXPECT_TRUE(queue.empty());
}

TEST(BatchQueue, ABatchThatIsFullIsFollowedByAnother) {
  BatchQueue<Words> queue(10);
  for (const char* word : {"a", "b", "c"}) queue.Add(4).words.push_back(word);
  queue.Add(50).words.push_back("large");  // has one to itself
  queue.Add(1).words.push_back("e");
  std::vector<std::vector<std::string>> batches;
  while (queue.waiting()) {
    batches.push_back(queue.Send().words);
    queue.OnSent();
  }
  const std::vector<std::vector<std::string>> expected = {{"a", "b"}, {"c"}, {"large"}, {"e"}};
  EXPECT_EQ(batches, expected);
}

TEST(BatchQueue, WhatWaitsCanBeDroppedAndWhatIsSentStays) {
  BatchQueue<Words> queue(1);
  for (const char* word : {"a", "b", "c"}) queue.Add(1).words.push_back(word);
  const Words& sent = queue.Send();
  queue.DropWaiting();
  EXPECT_FALSE(queue.waiting());
  EXPECT_EQ(sent.words, std::vector<std::string>{"a"});
  queue.Add(1).words.push_back("d");
  queue.OnSent();
  EXPECT_EQ(queue.Send().words, std::vector<std::string>{"d"}) << "nothing of a spent batch";
}

}  // namespace
}  // namespace penstock
