// HTTP over TLS: whom it lets in, what it shows them, and clients that are slow, rude or not TLS's.

#include "base/tls/tls_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <random>
#include <thread>

#include "base/check.h"
#include "lab/fake/certificates.h"
#include "lab/fake/temp_folder.h"
#include "tests/http/edge_fixture.h"
#include "tests/http/http_client.h"
#include "tests/http/tls_client.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using namespace std::chrono_literals;

class TlsSocketTest : public ::testing::Test, protected EdgeFixture {
 protected:
  TlsSocketTest() { Write("server", ca_); }
  ~TlsSocketTest() override { server_.reset(); }  // before the files of its identity

  // An identity in a folder of that name.
  TlsFiles Write(const std::string& name, const TestCa& ca) const {
    std::filesystem::create_directory(folder_.path() + "/" + name);
    WriteIdentity(folder_.path() + "/" + name, ca, ca.Issue(name));
    return FilesIn(folder_.path() + "/" + name);
  }

  void Start(bool ask_callers = false, EdgeTimes times = {}) {
    TlsFiles files = FilesIn(folder_.path() + "/server");
    if (!ask_callers) files.ca.path.clear();
    auto identity = TlsIdentity::Open(files, TlsUse::kServer);
    PENSTOCK_CHECK(identity.ok(), "(an identity did not open)");
    EdgeFixture::Start({.tls = *identity, .times = times});
  }

  // Shows nothing.
  TlsClient::Options Stranger() const {
    return {.files = {.cert = {}, .key = {}, .ca = FilesIn(folder_.path() + "/server").ca}};
  }

  // True when a request on a new connection is answered.
  bool Answers(const TlsClient::Options& options) const {
    TlsClient client(endpoint(), options);
    return client.connected() && client.Send(HttpText("/", "hello")) &&
           client.ReceiveUntil("\n\nhello");
  }

  const TempFolder folder_;
  const TestCa ca_{"test CA"};
  const TestCa other_ca_{"another CA"};
};

TEST_F(TlsSocketTest, AnswersRequestAfterRequest) {
  Start();
  {
    TlsClient client(endpoint(), Stranger());
    ASSERT_TRUE(client.connected());
    EXPECT_EQ(client.server_name(), "server");
    for (const char* word : {"one", "two", "three"}) {
      ASSERT_TRUE(client.Send(HttpText("/", word)));
      ASSERT_TRUE(client.ReceiveUntil(std::string("\n\n") + word));
    }
    ASSERT_TRUE(client.Send("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"));
    EXPECT_TRUE(client.EndsInOrder());
  }
  EXPECT_TRUE(WaitUntil([&] { return server_->connections() == 0; }));
}

TEST_F(TlsSocketTest, LargeBodiesPassBothWays) {
  Start();
  TlsClient client(endpoint(), Stranger());
  std::string body(3 << 20, '\0');
  std::mt19937 random(7);
  for (char& letter : body) letter = static_cast<char>('a' + random() % 26);
  body += '!';
  ASSERT_TRUE(client.Send(HttpText("/", body)));
  ASSERT_TRUE(client.ReceiveUntil("!"));
  EXPECT_THAT(client.received(), EndsWith("\n\n" + body));
  // More than sockets take at once: TLS has records half sent.
  TlsClient slow(endpoint(), Stranger());
  ASSERT_TRUE(slow.Send(HttpText("/large") + HttpText("/", "after")));
  ASSERT_TRUE(slow.ReceiveUntil("\n\nafter"));
  EXPECT_GT(slow.received().size(), EdgeHandler::kLarge);
}

TEST_F(TlsSocketTest, WhoSpeaksNoTlsIsClosed) {
  Start();
  HttpClient plain(endpoint());
  plain.Send(HttpText("/", "hello"));
  EXPECT_TRUE(plain.Closes());
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    HttpClient noise(endpoint());
    // A record of a handshake, as far as its first bytes say.
    std::string bytes = "\x16\x03\x01\x02";
    for (int i = 0; i < 600; ++i) bytes += static_cast<char>(random());
    noise.Send(bytes);
    noise.FinishSending();
    ASSERT_TRUE(noise.Closes());
  }
  EXPECT_GT(metrics_.hits(EdgeLimit::kHandshake), 0);  // not all of it is even that
  EXPECT_TRUE(WaitUntil([&] { return server_->connections() == 0; }));
  EXPECT_TRUE(Answers(Stranger()));
}

TEST_F(TlsSocketTest, OldVersionsAreRefused) {
  Start();
  TlsClient::Options options = Stranger();
  options.newest_version = TLS1_1_VERSION;
  EXPECT_FALSE(Answers(options));
  options.newest_version = TLS1_2_VERSION;
  EXPECT_TRUE(Answers(options));
}

TEST_F(TlsSocketTest, ARenegotiationIsRefused) {
  Start();
  TlsClient::Options options = Stranger();
  options.newest_version = TLS1_2_VERSION;
  TlsClient client(endpoint(), options);
  ASSERT_TRUE(client.connected());
  ASSERT_EQ(SSL_renegotiate(client.ssl()), 1);
  EXPECT_FALSE(client.ShakeHands());
}

TEST_F(TlsSocketTest, AlpnIsAgreedOnOrRefused) {
  Start();
  TlsClient::Options options = Stranger();
  options.alpn = {"spdy/3", "http/1.1"};
  TlsClient both(endpoint(), options);
  EXPECT_EQ(both.protocol(), "http/1.1");
  EXPECT_TRUE(Answers(options));
  options.alpn = {"spdy/3"};
  EXPECT_FALSE(TlsClient(endpoint(), options).connected());
}

TEST_F(TlsSocketTest, CallersShowACertificateOfTheCa) {
  Start(/*ask_callers=*/true);
  EXPECT_FALSE(Answers(Stranger()));
  EXPECT_TRUE(Answers({.files = Write("caller", ca_)}));
  TlsFiles liar = Write("liar", other_ca_);
  liar.ca = FilesIn(folder_.path() + "/server").ca;
  EXPECT_FALSE(Answers({.files = liar}));
}

TEST_F(TlsSocketTest, NewConnectionsAreShownWhatTheFilesSayNow) {
  Start();
  TlsClient before(endpoint(), Stranger());
  EXPECT_EQ(before.server_name(), "server");
  const TestPair pair = ca_.Issue("renewed");
  const TlsFiles files = FilesIn(folder_.path() + "/server");
  ReplaceFile(files.cert.path, pair.cert);  // and its key has yet to come
  EXPECT_EQ(TlsClient(endpoint(), Stranger()).server_name(), "server");
  ReplaceFile(files.key.path, pair.key);
  EXPECT_EQ(TlsClient(endpoint(), Stranger()).server_name(), "renewed");
  ASSERT_TRUE(before.Send(HttpText("/", "still")));
  EXPECT_TRUE(before.ReceiveUntil("\n\nstill"));
}

TEST_F(TlsSocketTest, HandshakesMayComeByteByByteButNotForEver) {
  Start(/*ask_callers=*/false, {.handshake = 2s});
  // A client's first message, cut into bytes.
  TlsClient silent(endpoint(), Stranger(), /*shakes_hands=*/false);
  BIO* hello = BIO_new(BIO_s_mem());
  BIO* nothing = BIO_new(BIO_s_mem());
  SSL_set_bio(silent.ssl(), nothing, hello);
  EXPECT_FALSE(silent.ShakeHands());
  char* bytes = nullptr;
  const auto count = static_cast<size_t>(BIO_get_mem_data(hello, &bytes));
  ASSERT_GT(count, 100U);
  HttpClient slow(endpoint());
  for (size_t i = 0; i < count; ++i) ASSERT_TRUE(slow.Send({bytes + i, 1}));
  EXPECT_TRUE(slow.ReceiveUntil("\x16\x03\x03"));  // the server's answer
  EXPECT_TRUE(slow.Closes());                      // which nothing follows
  EXPECT_GE(metrics_.hits(EdgeLimit::kHandshake), 1);
  HttpClient mute(endpoint());
  EXPECT_TRUE(mute.Closes());
}

TEST_F(TlsSocketTest, AClientThatLeavesIsNoticed) {
  Start();
  for (const bool in_order : {true, false}) {
    const int left = handler_.left;
    {
      TlsClient client(endpoint(), Stranger());
      ASSERT_TRUE(client.Send(HttpText("/never")));
      ASSERT_TRUE(WaitUntil([&] { return handler_.handled == left + 1; }));
      if (in_order) SSL_shutdown(client.ssl());
    }
    EXPECT_TRUE(WaitUntil([&] { return handler_.left == left + 1; }));
  }
}

TEST_F(TlsSocketTest, SixteenClientsAtOnceWhileCertificatesChange) {
  Start();
  std::atomic<int> answered{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 16; ++i) {
    clients.emplace_back([&] {
      for (int round = 0; round < 5; ++round) answered += Answers(Stranger()) ? 1 : 0;
    });
  }
  for (int i = 0; i < 5; ++i) WritePair(folder_.path() + "/server", ca_.Issue("server"));
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(answered, 80);
}

}  // namespace
}  // namespace penstock
