#include "router/fleet/discovery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "lab/fake/temp_folder.h"
#include "router/fleet/dns_answer.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class WorkersFile : public ::testing::Test {
 protected:
  void Write(const std::string& text) { folder_.Write("workers", text); }

  const TempFolder folder_;
  const std::string path_ = folder_.path() + "/workers";
};

TEST(ParseWorkersFile, SkipsBlanksAndComments) {
  const auto workers = ParseWorkersFile("# ours\n a:1 \n\n[::1]:2 # six\r\nb:3");
  ASSERT_TRUE(workers.ok()) << workers.status();
  EXPECT_THAT(*workers, ElementsAre("[::1]:2", "a:1", "b:3"));
}

TEST(ParseWorkersFile, NamesTheLineThatIsWrong) {
  EXPECT_THAT(Message(ParseWorkersFile("a:1\nb\n").status()), HasSubstr("line 2: `b` has no port"));
  EXPECT_THAT(Message(ParseWorkersFile("a:0").status()), HasSubstr("line 1"));
  EXPECT_THAT(Message(ParseWorkersFile("a:99999").status()), HasSubstr("65535"));
}

TEST(Discovery, RefusesWhatIsNoEndpoint) {
  EXPECT_THAT(Message(Discovery::Create({.workers = {"nowhere"}}).status()),
              HasSubstr("workers: `nowhere`"));
  EXPECT_THAT(Message(Discovery::Create({.dns = {"name"}}).status()), HasSubstr("workers_dns"));
  EXPECT_EQ(Discovery::Create({.file = "/no/such/file"}).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(WorkersFile, IsReadAgainWhenItChanges) {
  Write("a:1\nb:2\n");
  auto discovery = Discovery::Create({.workers = {"s:9"}, .file = path_});
  ASSERT_TRUE(discovery.ok()) << discovery.status();
  EXPECT_THAT((*discovery)->Poll(), ElementsAre("a:1", "b:2", "s:9"));
  Write("b:2\nc:3\n");
  EXPECT_THAT((*discovery)->Poll(), ElementsAre("b:2", "c:3", "s:9"));
}

TEST_F(WorkersFile, ThatBreaksOrGoesKeepsWhatItSaid) {
  Write("a:1\n");
  auto discovery = Discovery::Create({.file = path_});
  ASSERT_TRUE(discovery.ok());
  Write("a:1\nbroken\n");
  EXPECT_THAT((*discovery)->Poll(), ElementsAre("a:1"));
  std::filesystem::remove(path_);
  EXPECT_THAT((*discovery)->Poll(), ElementsAre("a:1"));
  Write("");
  EXPECT_THAT((*discovery)->Poll(), IsEmpty());
}

TEST(DnsAnswerTest, ANameThatIsGoneKeepsItsWorkersForAWhile) {
  const std::set<std::string> none = {}, two = {"10.0.0.1:81", "10.0.0.2:81"},
                              other = {"10.0.0.3:81"};
  DnsAnswer answer;
  TimePoint now{};
  EXPECT_EQ(answer.Take(none, now), "") << "a Service without workers is nothing new";
  EXPECT_EQ(answer.Take(two, now), "");
  now += DnsAnswer::kKeep - std::chrono::seconds(1);
  EXPECT_THAT(answer.Take(none, now), HasSubstr("its last 2 are kept for up to 300 s"));
  EXPECT_EQ(answer.endpoints(), two);
  EXPECT_EQ(answer.Take(other, now), "");
  EXPECT_EQ(answer.endpoints(), other) << "an answer is believed at once";
  now += DnsAnswer::kKeep;
  EXPECT_THAT(answer.Take(none, now), HasSubstr("unlisted"));
  EXPECT_THAT(answer.endpoints(), IsEmpty());
  EXPECT_EQ(answer.Take(none, now), "");
}

TEST(DnsAnswerTest, AResolverThatFailsChangesNothing) {
  const std::set<std::string> one = {"10.0.0.1:81"};
  DnsAnswer answer;
  answer.Take(one, TimePoint{});
  EXPECT_EQ(answer.Take(absl::UnavailableError("timeout"), TimePoint{} + 2 * DnsAnswer::kKeep),
            "timeout");
  EXPECT_EQ(answer.endpoints(), one);
}

TEST(Discovery, FindsEveryAddressOfAName) {
  auto discovery = Discovery::Create({.dns = {"127.0.0.7:81", "[::1]:82"}});
  ASSERT_TRUE(discovery.ok());
  EXPECT_TRUE(WaitUntil([&] { return (*discovery)->Poll().size() == 2; }));
  EXPECT_THAT((*discovery)->Poll(), ElementsAre("127.0.0.7:81", "[::1]:82"));
}

}  // namespace
}  // namespace penstock
