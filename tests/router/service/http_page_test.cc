// The page of a router over fake workers, and what it may say to whom.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <nlohmann/json.hpp>

#include "lab/fake/temp_folder.h"
#include "router/page/page_asset.h"
#include "tests/http/http_client.h"
#include "tests/router/service/cluster.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Hex(const std::string& bytes) {
  std::string hex;
  for (const char c : bytes) hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return hex;
}

// A keys file that is gone with this.
class KeysFile {
 public:
  KeysFile() {
    folder_.Write("keys", R"({"tenants": [{"name": "acme"}, {"name": "bolt"}],
      "keys": [{"id": "a", "tenant": "acme", "sha256": ")" +
                              Hex(KeyDigest("acme-key")) +
                              R"("}, {"id": "b", "tenant": "bolt", "sha256": ")" +
                              Hex(KeyDigest("bolt-key")) + "\"}]}");
  }
  std::string path() const { return folder_.path() + "/keys"; }

 private:
  const TempFolder folder_;
};

constexpr char kAcme[] = "Authorization: Bearer acme-key\r\n";
constexpr char kBolt[] = "Authorization: Bearer bolt-key\r\n";

constexpr uint32_t kTokens = 4;

std::string Prompt(int words) {
  std::string prompt;
  for (int i = 0; i < words; ++i) prompt += "Once upon a time ";
  return prompt;
}

void Complete(const Cluster& cluster, const std::string& headers = "") {
  const json request = {{"prompt", Prompt(60)}, {"max_tokens", kTokens}};
  const HttpReply reply =
      Ask(cluster.router->http_endpoint(), "/v1/completions", request.dump(), headers);
  ASSERT_EQ(reply.status, 200) << reply.body;
}

json Report(const Cluster& cluster, const std::string& headers = "");

uint64_t HandoffsDone(const json& report) {
  uint64_t done = 0;
  for (const json& link : report["links"]) done += link["done"].get<uint64_t>();
  return done;
}

// Completes a prompt. A fake decode worker waits for no handoff, so this holds back the last token
// until the router has heard of the prompt's handoff, which is its number `handoffs`.
void CompleteWithHandoff(const Cluster& cluster, uint64_t handoffs, const std::string& headers) {
  for (const auto& worker : cluster.decode) worker->HoldAt(kTokens - 1);
  auto answer = std::async(std::launch::async, [&] { Complete(cluster, headers); });
  EXPECT_TRUE(WaitUntil([&] { return HandoffsDone(Report(cluster, headers)) == handoffs; }));
  for (const auto& worker : cluster.decode) worker->Release();
  answer.get();
}

// Completes one prompt until the router knows where its KV is: a worker's first snapshot of its
// cache clears what was expected of it before. Returns the number of requests.
int CompleteUntilHot(const Cluster& cluster, const std::string& headers = "") {
  int requests = 0;
  EXPECT_TRUE(WaitUntil([&] {
    ++requests;
    CompleteWithHandoff(cluster, static_cast<uint64_t>(requests), headers);
    return !Report(cluster, headers)["prefixes"].empty();
  }));
  return requests;
}

json Report(const Cluster& cluster, const std::string& headers) {
  const HttpReply reply = Ask(cluster.router->http_endpoint(), "/cluster", "", headers);
  EXPECT_EQ(reply.status, 200) << reply.body;
  return json::parse(reply.body, nullptr, /*allow_exceptions=*/false);
}

TEST(Page, EveryFileIsThereUnderAStrictPolicyAndTakesNothingFromElsewhere) {
  Cluster cluster;
  ASSERT_TRUE(cluster.WaitForReady());  // gRPC 1.51 does not survive being torn down as it connects
  ASSERT_GT(PageAssets().size(), 5u);
  for (const PageAsset& asset : PageAssets()) {
    SCOPED_TRACE(asset.path);
    const HttpReply reply = Ask(cluster.router->http_endpoint(), std::string(asset.path));
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.body, asset.body);
    EXPECT_EQ(reply.headers.at("content-type"), asset.type);
    const std::string& policy = reply.headers.at("content-security-policy");
    EXPECT_THAT(policy, HasSubstr("default-src 'none'"));
    EXPECT_THAT(policy, Not(HasSubstr("unsafe")));
    EXPECT_EQ(reply.headers.at("x-content-type-options"), "nosniff");
    const std::string body(asset.body);
    const size_t link = body.find("http");
    if (link != body.npos) {
      EXPECT_EQ(body.substr(link, 26), "http://www.w3.org/2000/svg") << "and nothing else";
    }
    EXPECT_THAT(body, Not(HasSubstr("innerHTML")));
  }
  HttpClient client(cluster.router->http_endpoint());
  client.Send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
  const HttpReply refused = client.Receive();
  EXPECT_EQ(refused.status, 405);
  EXPECT_EQ(refused.headers.at("allow"), "GET");
}

TEST(Page, ShowsWorkersRequestsTransfersAndPrefixesButNoPrompt) {
  Cluster cluster({.prefill = 2, .decode = 2});
  ASSERT_TRUE(cluster.WaitForReady());
  const int requests = CompleteUntilHot(cluster);
  EXPECT_TRUE(WaitUntil([&] {
    const json now = Report(cluster);
    uint32_t open = 0;
    for (const json& link : now["links"]) open += link["open"].get<uint32_t>();
    return now["requests"]["ended"] == requests && open == 0;
  }));
  const json report = Report(cluster);
  EXPECT_EQ(report["router"]["model"], "test-model");
  EXPECT_TRUE(report["router"]["ready"].get<bool>());
  EXPECT_FALSE(report["router"]["keys"].get<bool>());
  ASSERT_EQ(report["workers"].size(), 4u);
  for (const json& worker : report["workers"]) {
    EXPECT_EQ(worker["state"], "ready");
    EXPECT_GT(worker["tiers"][0]["total_bytes"].get<uint64_t>(), 0u);
  }
  EXPECT_EQ(report["requests"]["first_token_s"]["counts"].back(), requests);
  EXPECT_TRUE(report["requests"]["first_token_s"]["bounds"].back().is_null());
  ASSERT_FALSE(report["links"].empty());
  for (const json& link : report["links"]) {
    EXPECT_THAT(link["from"].get<std::string>(), HasSubstr("prefill"));
    EXPECT_THAT(link["to"].get<std::string>(), HasSubstr("decode"));
    EXPECT_EQ(link["kind"], "handoff");
  }
  EXPECT_EQ(HandoffsDone(report), static_cast<uint64_t>(requests));
  ASSERT_EQ(report["prefixes"].size(), 1u) << report;
  EXPECT_EQ(report["prefixes"][0]["hits"], 1);
  EXPECT_GE(report["prefixes"][0]["tokens"].get<int>(), 16);
  EXPECT_FALSE(report["prefixes"][0]["where"].empty());
  EXPECT_THAT(report.dump(), Not(HasSubstr("Once")));
}

TEST(Page, BehindKeysAStrangerGetsTheFilesAndNoWordOfTheCluster) {
  const KeysFile keys;
  Cluster cluster({.keys_file = keys.path()});
  ASSERT_TRUE(cluster.WaitForReady());
  const std::string endpoint = cluster.router->http_endpoint();
  EXPECT_EQ(Ask(endpoint, "/").status, 200);
  EXPECT_EQ(Ask(endpoint, "/page/main.js").status, 200);
  for (const std::string path :
       {"/cluster", "/page/", "/page/none.js", "/version", "/index.html"}) {
    for (const std::string header : {"", "Authorization: Bearer wrong\r\n"}) {
      const HttpReply reply = Ask(endpoint, path, "", header);
      EXPECT_EQ(reply.status, 401) << path;
      EXPECT_THAT(reply.body, Not(HasSubstr("prefill"))) << path;
    }
  }
  EXPECT_EQ(Ask(endpoint, "/page/none.js", "", kAcme).status, 404);
  EXPECT_EQ(Report(cluster, kAcme)["workers"].size(), 2u);
}

TEST(Page, ATenantSeesItsOwnPrefixesOnly) {
  const KeysFile keys;
  Cluster cluster({.keys_file = keys.path()});
  ASSERT_TRUE(cluster.WaitForReady());
  CompleteUntilHot(cluster, kAcme);
  EXPECT_EQ(Report(cluster, kBolt)["prefixes"].size(), 0u);
  EXPECT_EQ(Report(cluster, kAcme)["prefixes"][0]["hits"], 1);
}

TEST(Page, IsNotThereWhereItIsOff) {
  Cluster cluster({.page = false});
  ASSERT_TRUE(cluster.WaitForReady());
  for (const char* path : {"/", "/page/main.js", "/cluster"}) {
    EXPECT_EQ(Ask(cluster.router->http_endpoint(), path).status, 404) << path;
  }
  EXPECT_EQ(Ask(cluster.router->http_endpoint(), "/health").status, 200);
}

}  // namespace
}  // namespace penstock
